import os

from hypothesis import settings

# Nothing phones home, and all clients of Chroma in this process have the same settings, as they must.
os.environ["ANONYMIZED_TELEMETRY"] = "False"

# Shared machines stall now and then: a slow example is no failure.
settings.register_profile("ragbook", deadline=None)
settings.load_profile("ragbook")
