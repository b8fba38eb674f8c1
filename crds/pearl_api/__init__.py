"""The contracts of PEARL: custom resources, wire messages, names and tokens.

Every other room imports this one; this one imports only Pydantic. The CRD YAML, the Helm chart's copy of it
and the reference documentation are generated from the models here (`make crds`).
"""
