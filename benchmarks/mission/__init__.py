"""The table of docs/mission.md: every claim and system, and where it is made, tested and tried."""
