"""How commands run: Ctrl-C and SIGTERM let them clean up, and an error is one message and an exit code."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
from collections.abc import Coroutine
from typing import Any, TypeVar

import click

from engine.cli.error_output import show_error
from engine.cli.exits import Terminated, exit_code_for
from engine.cli.options import JSON_KEY
from engine.errors import OnclusterError

T = TypeVar("T")


class OnclusterGroup(click.Group):
    """A group whose errors become one message on standard error and the exit code of their kind."""

    def invoke(self, ctx: click.Context) -> Any:
        if ctx.parent is not None:
            return super().invoke(ctx)
        asks_for_json = "--json" in itertools.takewhile(lambda argument: argument != "--", ctx.args)
        ctx.meta[JSON_KEY] = asks_for_json  # before the part is imported that would say so
        try:
            return self._invoke_root(ctx)
        except click.ClickException as error:
            if not asks_for_json:
                raise
            show_error(error, as_json=True)
            ctx.exit(error.exit_code)

    def _invoke_root(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError:  # the reader of our output went away; click ends quietly
            raise
        except UnicodeEncodeError as error:
            # A byte of the command line that is no UTF-8 was about to be sent.
            text = error.object[: error.end].encode("utf-8", "backslashreplace").decode()
            raise click.UsageError(f"What is given is no UTF-8: {text}") from error
        except (OnclusterError, OSError, KeyboardInterrupt, Terminated) as error:
            show_error(error, as_json=bool(ctx.meta.get(JSON_KEY)))
            ctx.exit(exit_code_for(error))


def run_async(work: Coroutine[Any, Any, T]) -> T:
    """Run `work` on a fresh event loop. Ctrl-C and SIGTERM cancel it, so that its clean-up runs.

    Raises KeyboardInterrupt or Terminated after that.
    """
    import asyncio  # half of the time of `oncluster --help`

    terminated = False

    async def guarded() -> T:
        task = asyncio.current_task()
        assert task is not None

        def on_sigterm() -> None:
            nonlocal terminated
            if not terminated:
                terminated = True
                task.cancel()

        # Off the main thread, and where loops have no signals, SIGTERM keeps what it does by itself.
        with contextlib.suppress(NotImplementedError, ValueError, RuntimeError):
            asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, on_sigterm)
        return await work

    try:
        return asyncio.run(guarded())
    except asyncio.CancelledError:
        if terminated:
            raise Terminated() from None
        raise


def keep_files_private() -> None:
    """What this command and its children make is for this user alone: data, logs, passwords in settings."""
    before = os.umask(0o077)
    click.get_current_context().call_on_close(lambda: os.umask(before))
