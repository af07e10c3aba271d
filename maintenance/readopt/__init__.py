"""Readoption: commits that a failover or a restore has lost are made again from their objects."""

from maintenance.readopt.file_contents import read_file_commit
from maintenance.readopt.lost_files import LostFile, in_commit_order, reported_files
from maintenance.readopt.read_ahead import ReadAhead
from maintenance.readopt.readoption import read_lost_file, readopt_file
from maintenance.readopt.report import Outcome, ReadoptedFile, ReadoptReport
from maintenance.readopt.run import readopt, wait_for_agents

__all__ = [
    "LostFile",
    "Outcome",
    "ReadAhead",
    "ReadoptReport",
    "ReadoptedFile",
    "in_commit_order",
    "read_file_commit",
    "read_lost_file",
    "readopt",
    "readopt_file",
    "reported_files",
    "wait_for_agents",
]
