"""The loan service: enrols trainer pods, grants their offers, and records what becomes of them.

Reading order: `api` (HTTP) → `service` (what each call and look does) → `identity` (TokenReview) → `enrol` (checks) →
`borrowers` (pure builders) → `record` (pure phases of a GPULoan) → `facts` (for the planner). It enforces nothing: the
agents do, and with this process dead they still give every GPU back.
"""

from pearl_operator.loans.service import LoanService

__all__ = ["LoanService"]
