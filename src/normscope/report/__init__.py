"""Reports: results as one HTML file that opens anywhere and needs nothing else."""

from normscope.report.dataset_section import dataset_section
from normscope.report.document import Download, Picture, Report, Section, Table
from normscope.report.downloads import dataset_downloads
from normscope.report.inputs import report_of
from normscope.report.page import render, write_report
from normscope.report.pictures import picture_of
from normscope.report.result_files import result_section

__all__ = [
    "Download",
    "Picture",
    "Report",
    "Section",
    "Table",
    "dataset_downloads",
    "dataset_section",
    "picture_of",
    "render",
    "report_of",
    "result_section",
    "write_report",
]
