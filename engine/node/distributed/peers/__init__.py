"""Other nodes: who can be read, who is silent, and whom to ask next."""
