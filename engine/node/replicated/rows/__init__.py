"""INSERT into replicated tables, the views in front of and behind them, and consistent reads."""
