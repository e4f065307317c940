"""What may go wrong that a user can mend, and how a run is stopped."""


class HeedError(Exception):
    """What a user can mend: the message says what was found, where, and what to do. Printed as one line."""


class Stopped(Exception):
    """A signal asked a run to stop, and its state is saved. `signal`: its number."""

    def __init__(self, signal: int):
        super().__init__(signal)
        self.signal = signal
