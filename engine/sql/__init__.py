"""SQL text: tokens, statement classification, rewriting, redaction."""
