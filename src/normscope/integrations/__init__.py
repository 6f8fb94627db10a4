"""normscope inside other tools; a module named after a package needs that package."""

from normscope.integrations.export import long_table, write_csv
from normscope.integrations.logged_scope import LoggedScope, log_results
from normscope.integrations.logger import Logger, RowLogger
from normscope.results.netcdf import write_netcdf

__all__ = [
    "LoggedScope",
    "Logger",
    "RowLogger",
    "log_results",
    "long_table",
    "write_csv",
    "write_netcdf",
]
