"""The tables of `system` that are the node's own, and what SHOW makes of them."""
