"""Files that a shell text writes before it starts a program that reads them: `cat > FILE <<EOF`."""

from __future__ import annotations

import posixpath
import re
from dataclasses import replace

from plimsoll.service.workloads.objects.pods import Container

# `<<EOF`, `<<-EOF`, `<<'EOF'`; not `<<<`, which is followed by the text itself.
HERE_DOCUMENT = re.compile(r"(?<!<)<<-?[ \t]*(['\"]?)([A-Za-z_][A-Za-z0-9_]*)\1")
REDIRECTION = re.compile(r"(?<![0-9>&])>{1,2}[ \t]*(['\"]?)([^\s'\"<>|;&]+)\1")


def with_here_documents(container: Container) -> Container:
    """Return a container whose words hold no here-documents, and whose files have those that were written out.

    What a document is piped into is left without it: no launch command reads one.
    """
    files = dict(container.files)
    command = tuple(_without_documents(word, files) for word in container.command)
    args = tuple(_without_documents(word, files) for word in container.args)
    return replace(container, command=command, args=args, files=files)


def _without_documents(text: str, files: dict[str, str]) -> str:
    if "<<" not in text:
        return text
    kept: list[str] = []
    lines = iter(text.splitlines())
    for line in lines:
        mark = HERE_DOCUMENT.search(line)
        if mark is None:
            kept.append(line)
            continue
        body = []
        for inner in lines:
            if inner.strip() == mark[2]:
                break
            body.append(inner)
        rest = line[: mark.start()] + line[mark.end() :]
        target = REDIRECTION.search(rest)
        if target is not None:
            files[posixpath.normpath(target[2])] = "\n".join(body)
        kept.append(rest)
    return "\n".join(kept)
