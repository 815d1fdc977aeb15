from .report import report as report
