"""What makes two findings the same from run to run?"""

from resstream.checks.report import Finding

Key = tuple[str, int | None, str | None]
"""Code, layer, write."""


def key_of(finding: Finding) -> Key:
    """What a finding is known by."""
    return finding.code, finding.layer, finding.write
