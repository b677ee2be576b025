import os

from hypothesis import settings

# Nothing phones home; and Chroma refuses clients of different settings in one process.
os.environ["ANONYMIZED_TELEMETRY"] = "False"

# Shared machines stall now and then: a slow example is no failure.
settings.register_profile("ragbook", deadline=None)
settings.load_profile("ragbook")
