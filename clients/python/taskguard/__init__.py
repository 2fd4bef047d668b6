"""Write taskguard analyzers in Python, and enqueue analyses.

run(analyze)        a program: ANALYZER="exec:python3 analyzer.py"
@endpoint           an ASGI or WSGI application: ANALYZER=http://localhost:8000/analyze
submit("id", input) enqueues an analysis

An analyzer is a function that takes a Job and returns the result, which JSON must be able to hold. To
fail it raises Failed. Any other exception is a temporary failure with the exception's class as its code.
"""

from .endpoints import endpoint as endpoint
from .jobs import Failed as Failed
from .jobs import Job as Job
from .jobs import NotDone as NotDone
from .jobs import Once as Once
from .jobs import Stopped as Stopped
from .jobs import run as run
from .submissions import OtherInput as OtherInput
from .submissions import Submission as Submission
from .submissions import submit as submit
