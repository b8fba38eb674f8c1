"""One gateway in several processes (`gateway.processes`), at one address.

`supervisor` starts them and starts one again that died. Every trajectory lives in one process (`homes`): whichever
process a client is connected to passes its request on (`front`, `forward`). What there is once per gateway (batches,
permits, the profile) is kept by process 0 (`owner`); the others (`member`) tell it what happened and are told what they
must know. `assembly` puts one process together. docs/gateway.md, "Several processes", says what follows from it.
"""
