"""What users ask of a replicated table: create, insert, mutate, alter, drop, repair."""
