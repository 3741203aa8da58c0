"""Shell text as commands, and their words as quoted and unquoted pieces.

What a shell would put in place of a piece is not decided here: that takes its variables. Redirections are left out.
Source: POSIX.1-2024, Shell Command Language, 2.2 (quoting) and 2.3 (tokens); arrays as bash has them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

# A word that opens or ends a part which may run or not, and those that stand before a command in it.
OPENING = frozenset({"if", "case", "for", "while", "until", "select"})
CLOSING = frozenset({"fi", "esac", "done"})
BEFORE_COMMANDS = frozenset({"then", "else", "elif", "do", "{", "}", "!", *OPENING, *CLOSING})
TESTS = frozenset({"[", "[[", "test"})
BLANKS, ENDS = " \t\r", ";&|()\n"
ESCAPABLE_IN_QUOTES = '$`"\\\n'
# Signs that mean themselves, without quotes and in double quotes.
PLAIN = re.compile(r"[^\s'\"\\`$;&|()<>=]+")
PLAIN_IN_QUOTES = re.compile(r"[^\"\\`$]+")
Kind: TypeAlias = Literal["literal", "bare", "quoted", "output"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """A part of a word: `literal` as it stands, `bare` and `quoted` with variables in it, `output` a command's."""

    text: str
    kind: Kind


@dataclass(frozen=True, slots=True, kw_only=True)
class Word:
    """One word; `elements` are those of an array that is assigned to the name in `pieces`, None for any other word."""

    pieces: tuple[Piece, ...]
    elements: tuple[Word, ...] | None = None

    @property
    def plain(self) -> str:
        """Return the text of a word without quotes, an empty text for any other."""
        return "".join(piece.text for piece in self.pieces) if all(p.kind == "bare" for p in self.pieces) else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """The words of one command; `is_conditional` where it may be left out when the text runs.

    `is_background` where the next one does not wait for it.
    """

    words: tuple[Word, ...]
    is_conditional: bool
    is_background: bool = False


def commands(text: str) -> Iterator[Command]:
    """Yield the commands of a shell text in order; what follows an unclosed quote is not read."""
    depth, is_linked, after_test = 0, False, False
    for words, end in _Reader(text).commands():
        depth, words = _without_keywords(words, depth)
        if words:
            yield Command(words=words, is_conditional=depth > 0 or is_linked, is_background=end == "&")
            after_test = words[0].plain in TESTS
        # What comes after `||`, or after a test and `&&`, runs or does not.
        is_linked = end == "||" or (end == "&&" and (after_test or is_linked))


def _without_keywords(words: tuple[Word, ...], depth: int) -> tuple[int, tuple[Word, ...]]:
    while words and words[0].plain in BEFORE_COMMANDS:
        keyword = words[0].plain
        depth = max(depth + (keyword in OPENING) - (keyword in CLOSING), 0)
        words = words[1:]
        if keyword in ("for", "case", "select"):
            # A name or a value follows, no command.
            return depth, ()
    return depth, words


class _Unclosed(Exception):
    """A quote or a bracket does not end."""


@dataclass(slots=True)
class _Reader:
    text: str
    place: int = 0
    pieces: list[tuple[Kind, list[str]]] = field(default_factory=list)

    def commands(self) -> Iterator[tuple[tuple[Word, ...], str]]:
        """Yield each command's words, and what ended it."""
        try:
            while self.place < len(self.text):
                words, end = self._words(ENDS)
                yield words, end
        except _Unclosed:
            return

    def _words(self, ends: str) -> tuple[tuple[Word, ...], str]:
        """Return the words up to one of the ends, which is taken too."""
        words: list[Word] = []
        is_target = False
        while self.place < len(self.text):
            sign = self.text[self.place]
            if self.text.startswith("\\\n", self.place):
                self.place += 2
            elif sign in BLANKS or (sign == "\n" and sign not in ends):
                self.place += 1
            elif sign == "#":
                self._to_the_lines_end()
            elif self.text[self.place : self.place + 2] in ("<(", ">("):
                self.place += 1
                self._bracketed("(", ")")
                is_target = False
            elif sign in "<>" or self.text.startswith("&>", self.place):
                self._redirection()
                is_target = True
            elif sign in ends:
                return tuple(words), self._end()
            else:
                word = self._word(ends)
                if not is_target and not self._is_descriptor(word):
                    words.append(word)
                is_target = False
        return tuple(words), ""

    def _end(self) -> str:
        two = self.text[self.place : self.place + 2]
        end = two if two in ("&&", "||", ";;") else self.text[self.place]
        self.place += len(end)
        return end

    def _redirection(self) -> None:
        while self.place < len(self.text) and self.text[self.place] in "<>&|":
            self.place += 1

    def _is_descriptor(self, word: Word) -> bool:
        """Return whether a word is the number of a file that is redirected, as in `2>&1`."""
        return word.plain.isdigit() and self.text[self.place : self.place + 1] in ("<", ">")

    def _to_the_lines_end(self) -> None:
        end = self.text.find("\n", self.place)
        self.place = len(self.text) if end < 0 else end

    def _word(self, ends: str) -> Word:
        self.pieces = []
        while self.place < len(self.text):
            sign = self.text[self.place]
            # bash has no array in an array.
            if sign == "(" and ends == ENDS and self.pieces and self.pieces[-1][1][-1] == "=":
                return self._array()
            if sign in BLANKS or sign in "\n<>" or sign in ends:
                break
            self._piece(sign)
        return Word(pieces=self._taken())

    def _taken(self) -> tuple[Piece, ...]:
        return tuple(Piece(text="".join(parts), kind=kind) for kind, parts in self.pieces)

    def _array(self) -> Word:
        name = self._taken()
        self.place += 1
        elements, end = self._words(")")
        if end != ")":
            raise _Unclosed
        return Word(pieces=name, elements=elements)

    def _piece(self, sign: str) -> None:
        if sign == "'":
            self._add(self._up_to("'"), "literal")
        elif sign == '"':
            self.place += 1
            self._quoted()
        elif sign == "\\":
            self._add(self.text[self.place + 1 : self.place + 2].replace("\n", ""), "literal")
            self.place += 2
        elif not self._substitution("bare"):
            self._plain(PLAIN, "bare")

    def _quoted(self) -> None:
        self._add("", "literal")
        while self.place < len(self.text):
            sign = self.text[self.place]
            following = self.text[self.place + 1 : self.place + 2]
            if sign == '"':
                self.place += 1
                return
            if sign == "\\" and following and following in ESCAPABLE_IN_QUOTES:
                self._add(following.replace("\n", ""), "literal")
                self.place += 2
            elif not self._substitution("quoted"):
                self._plain(PLAIN_IN_QUOTES, "quoted")
        raise _Unclosed

    def _plain(self, signs: re.Pattern[str], kind: Kind) -> None:
        match = signs.match(self.text, self.place)
        text = self.text[self.place] if match is None else match[0]
        self._add(text, kind)
        self.place += len(text)

    def _substitution(self, kind: Kind) -> bool:
        """Take what begins with a dollar and a bracket, or a backtick, whole; return whether there was any."""
        if self.text[self.place] == "`":
            self._add(f"$({self._up_to('`')})", "output")
        elif self.text.startswith("$(", self.place):
            self.place += 1
            self._add(f"${self._bracketed('(', ')')}", "output")
        elif self.text.startswith("${", self.place):
            self.place += 1
            self._add(f"${self._bracketed('{', '}')}", kind)
        else:
            return False
        return True

    def _up_to(self, mark: str) -> str:
        end = self.text.find(mark, self.place + 1)
        if end < 0:
            raise _Unclosed
        start, self.place = self.place + 1, end + 1
        return self.text[start:end]

    def _bracketed(self, opening: str, closing: str) -> str:
        start, depth = self.place, 0
        while self.place < len(self.text):
            sign = self.text[self.place]
            depth += (sign == opening) - (sign == closing)
            self.place += 1
            if not depth:
                return self.text[start : self.place]
        raise _Unclosed

    def _add(self, text: str, kind: Kind) -> None:
        if not self.pieces or self.pieces[-1][0] != kind:
            self.pieces.append((kind, []))
        self.pieces[-1][1].append(text)
