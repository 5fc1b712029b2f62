"""Distributed tables on a node. `assembly` puts together what is in here:

    registry      which tables there are, and what their names mean
    functions     `cluster()`, `remote()` and their kin, found in statements
    sending       rows on their way to shards: stage, spool, senders
    peers         other nodes: who can be read, who is silent, whom to ask next
    definitions   CREATE, ALTER, DROP, SHOW and what else is about definitions
    reading       SELECT; begin with `selects`

Each imports only from those above it. `inserts` is INSERT, also into table functions (`function_targets`).
"""
