"""CloudFormation and Terraform, read and checked by their own libraries.

The imports are inside the functions, because they take a second in each process of the tests.
"""

from __future__ import annotations

import json
from typing import Any


def read_cloudformation(text: str) -> dict[str, Any]:
    """The template as plain dicts and lists."""
    from cfnlint.decode.cfn_yaml import loads

    read: dict[str, Any] = json.loads(json.dumps(loads(text)))
    return read


def read_terraform(text: str) -> dict[str, Any]:
    """The module, by the kind of its blocks."""
    import hcl2

    plain = hcl2.SerializationOptions(
        strip_string_quotes=True, with_comments=False, explicit_blocks=False
    )
    return dict(hcl2.loads(text, serialization_options=plain))


def lint(text: str) -> list[str]:
    """The findings of cfn-lint in a template."""
    from cfnlint.api import lint
    from cfnlint.config import ManualArgs

    return [str(match) for match in lint(text, config=ManualArgs(regions=["eu-central-1"]))]
