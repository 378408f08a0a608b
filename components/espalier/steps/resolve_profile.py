"""The `resolve_profile` step: the form of a run becomes one checked profile."""

from kfp import dsl

from espalier.steps.image import IMAGE


@dsl.component(base_image=IMAGE, install_kfp_package=False)
def resolve_profile(profile: str, seed: int, overrides: str) -> str:
    """Read the named profile, apply the form's changes, and return the whole of it as JSON.

    Args:
        profile: name of a profile in the image, or the JSON of a whole profile.
        seed: replaces the profile's own.
        overrides: section.key=value, several separated by semicolons.
    """
    import sys

    from espalier.records import EspalierError
    from espalier.steps.profiles import resolved_profile

    try:
        return resolved_profile(profile, seed=seed, overrides=overrides).model_dump_json()
    except EspalierError as error:
        sys.exit(f"error: resolve_profile: {error}")
