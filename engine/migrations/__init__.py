"""Schema migrations: SQL files, applied to clusters as ON CLUSTER statements, recorded in a ledger.

Table of contents; start with `runner`, whose docstring shows a run from begin to end.

    files, options        a folder of golang-migrate's naming, and the options in its comments
    selection, preflight  which migrations a run concerns, and what forbids it before anything is sent
    plan, where           what a run would do, said beforehand
    gather, probe         looking around for it
    lint, lint_statements what a reviewer would say
    rehearse              up, up again and down on a scratch chDB
    runner, drive         the steps of a run one by one, and all of them in a row
    decide, verdict       the decisions of a run; pure
    observe, guarded      between the DDL queue and the ledger; sending only while the lock is held
    lock                  the lease in Keeper that numbers its holders
    ledger, ledger_writer, ledger_store, ledger_schema, states    the record, and what it adds up to
    upkeep                late outcomes, a person's word, a lock whose holder is gone
    model, statements, tokens, errors                             the values in between

Nothing is imported here, so that reading a folder of files costs no database driver.
"""
