"""Reports: results as one HTML file without outside references."""

from normscope.report.datasets import dataset_section
from normscope.report.document import Card, Download, Picture, Report, Section, Table
from normscope.report.downloads import dataset_downloads
from normscope.report.page import render, write_report
from normscope.report.pictures import picture_of
from normscope.report.runs import result_section
from normscope.report.sources import report_of

__all__ = [
    "Card",
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
