"""The allocator lab: recordings of device memory, read, replayed, explained and improved.

State
-----
None. Nothing here is imported by the runtime itself.

Invariants
----------
* `readers.read` takes any file; what it returns says what the file lacks.
* Every figure about other settings is of a replay (`replay.replay_events`), never an estimate.

The way of a file: `readers` (a `Recording`) -> `history` (who owned what when, and what was there
before) -> `script` (an event list) -> `replay`. On that stand `fidelity`, `waste`, `bounds`,
`autopsy`, `patterns`, `advice`, and the command line in `commands`.
"""
