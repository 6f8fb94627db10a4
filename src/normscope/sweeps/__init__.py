"""Phase diagrams and other sweeps: many short trainings, resumable, here or on a cluster."""

from normscope.sweeps.boundary import boundary
from normscope.sweeps.cells import Cell, Unit, grid_cells
from normscope.sweeps.engines import ENGINES
from normscope.sweeps.phase_diagram import phase_diagram
from normscope.sweeps.status import Status, status
from normscope.sweeps.sweep import sweep
from normscope.sweeps.training_cell import training_cell
from normscope.sweeps.training_settings import Training
from normscope.sweeps.work import Failure, Report, Work

__all__ = [
    "ENGINES",
    "Cell",
    "Failure",
    "Report",
    "Status",
    "Training",
    "Unit",
    "Work",
    "boundary",
    "grid_cells",
    "phase_diagram",
    "status",
    "sweep",
    "training_cell",
]
