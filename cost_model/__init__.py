"""The planner's own policy on a simulated clock: what a workload costs, from objects to dollars."""
