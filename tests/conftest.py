from hypothesis import settings

# Shared machines stall now and then: a slow example is no failure.
settings.register_profile("ragbook", deadline=None)
settings.load_profile("ragbook")
