"""The same samples through every container and entry point: kept, converted or refused, never wrong in silence.

python -m gate           # print what differs from outcomes.json
python -m gate --write   # write outcomes.json, and the page of it in docs/
"""
