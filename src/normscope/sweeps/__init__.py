"""Phase diagrams and other sweeps: many short trainings, resumable, here or on a cluster."""

from normscope.sweeps.boundary import boundary
from normscope.sweeps.cell import training_cell
from normscope.sweeps.diagram import TRAININGS, Diagram, phase_diagram
from normscope.sweeps.engines import ENGINES, Engine
from normscope.sweeps.run import sweep
from normscope.sweeps.settings import Training
from normscope.sweeps.status import Status, status
from normscope.sweeps.work import Cell, Failure, Report, Unit, Work, grid_cells

__all__ = [
    "ENGINES",
    "TRAININGS",
    "Cell",
    "Diagram",
    "Engine",
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
