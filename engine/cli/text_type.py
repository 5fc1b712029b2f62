"""What parameter types of the command line are made of: click's is generic from 8.4 on, and Airflow may bring
an older one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    TextType = click.ParamType[str]
else:
    TextType = click.ParamType
