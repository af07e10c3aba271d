"""Simulation of the cost of a workload under the planner's own policy: objects, requests, rows, dollars."""
