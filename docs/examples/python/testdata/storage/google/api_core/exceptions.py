class PreconditionFailed(Exception):
    pass
