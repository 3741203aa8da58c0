"""bash itself is the judge: what it starts, with which words, is what the reader says, or says to be unknown."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from plimsoll.service.workloads.commands.shell import Program, programs
from tests.service.admission.reviews import a_plain_container

BASH = shutil.which("bash")
pytestmark = pytest.mark.skipif(BASH is None, reason="there is no bash")
# Stand-ins write their name and arguments to a file, each ended by a zero byte, and a line's end after the last.
STAND_INS = ("python", "torchrun", "vllm", "e")
STAND_IN = (
    '#!/bin/sh\nfor word in "${0##*/}" "$@"; do printf "%s\\0" "$word"; done >> "$LOG"; printf "\\n\\0" >> "$LOG"\n'
)
ARGUMENTS, ENV = ("script", "one", "two words"), {"TP": "2", "MODEL": "org/model", "EXTRA": "--a 1 --b"}

# One each; ↵ ends a line of it.
SCRIPTS = r"""
vllm serve "$MODEL" --tensor-parallel-size $TP --x=${TP} '$TP'
vllm serve $MODEL $EXTRA "$EXTRA" x$EXTRA"y"
vllm serve m \↵  --a 'b c' \↵  --d"e"f
A=1; B="x y"; e $A $B "$B" ${B}z $A$B "$A$B"
A=; e ${A:-d} ${A-d} ${A:+x} ${A+x} "$A" $A
A=1; e ${A:-d} ${A:+x} ${A+x y} ${A:?m}
: ${N:=4}; e $N
e $((1+2*3)) $((-3+5)) $((7/2)) $((-7%2)) $[1+2] $((TP * 8)) $(( $TP*8 ))
N=4; e $((N*2)) $(($N*2)) $((N++)) $N
N="1+1"; e $((N*2)) $(($N*2))
A=(a "b c" d); e "${A[@]}" ${A[@]} ${A[1]} "${A[*]}" ${#A[@]} $A
A=(a); A+=("b c" d); e "x${A[@]}y"; A=(); e "${A[@]}" z
A=x; A+=y; e $A; declare -a L=(1 2); e ${L[1]}
if true; then e 1; else e 2; fi
if false; then A=1; e $A; else A=2; e $A; fi; e $A
if e 1; then :; fi; e 2
for i in 1 2; do e $i; done; e $i
A=1; for i in 1 2; do e $A; A=2; done
for ((i=0;i<2;i++)); do e $i; done
while read x; do e $x; done <<< "a"; e $x
until e 1; do e 2; break; done
case a in a) e 1;; *) e 2;; esac
A=1; case x in x) A=2;; esac; e $A
f() { e "$1" "$@" $#; }; f a "b c"; e $1
f() { local X=1; e $X; }; X=2; f; e $X
f() { X=3; }; X=2; f; e $X
f() ( X=8; ); X=1; f; e $X
f() { return; e 1; }; f; e 2
f() { e $A; }; A=1 f; echo 'e $B' > part; B=2 source ./part; C=3 eval 'e $C'; e "[$A$B$C]"
(A=1; e $A); e "[$A]"
A=1; (A=2); e $A; A=3 | true; e $A; { A=4; }; e $A
A=1 e $A; e "[$A]"
export A=1; bash -c 'e $A'; B=1; bash -c 'e [$B]'; C=1 bash -c 'e $C'
bash -c 'e "$1" "$@"' x y "z w"
bash -euo pipefail -c "e $TP"
e "$@" $1 $2 "$2" $# ${3:-none} x$4y
set -- a "b c"; e "$@" $# $2; shift; e $1; shift 2; e "[$1]"
exec e 1; e 2
e 1; exit; e 2
(exit 1); e 2
true && e 1 || e 2; e 3
[ x = x ] && e 1; [ x = y ] && e 2; e 3
[ -z "$X" ] && A=1; e $A
! e 1; e 1 && { e 2; e 3; } && (e 4; A=3); e "[$A]"
{ e 1; e 2; } > /dev/null; e a >/dev/null b 2>&1 c </dev/null d 3>&- 4
>/dev/null e 1 2; e <<< "x" y; A=1 >/dev/null e x
cat <<EOF > /dev/null↵x $HOME "↵EOF↵e z
cat <<EOF && e x↵y↵EOF↵e z
cat > conf <<EOF↵  tp: $TP↵EOF↵e "$(cat conf)" z
e a#b #c↵e d
eval "e 1 2"; C="e 3 4"; $C; eval "$C 5"; eval e '$TP'
source ./nowhere; e 1
A=1; unset A; e "[$A]"; read A <<< 5; e "[$A]"; printf -v A x; e $A; let A=4; e $A
IFS=,; A=a,b; e $A
A='"q"'; e $A; A="a\"b"; e "$A"; A=a\ b; e "$A" $A
e "a\nb" 'a\nb' a\nb a\"b \$A \\ \' "\$A \` \" \\ \x" "a'b" 'c"d' d'e'"f"
e "" x "" ''
e $'x\ty' 'q' "a$(echo "b")c" `echo a b` $(echo $(echo a))
A=$(echo 1); e $A x; A=`echo 1 2`; e $A x; A="--m x --t $(echo 2 3)"; e $A
e ${A:-"x y"} ${A:-x y} "${A:-x y}" ${A:-${B:-c}} ${A:-}x "${A:-"q"}"
set -- "a b" c; e ${1+"$@"}; e "$*" $*
A=é; e "$A" ünï ${A}ö
A=a; e "$A"$A\ h $A\ h$A \ x\  $A-b $A.b $A:b $A,b $A/b $A=b ${A}b
A='x y'; B=$A; e "$B" $B a$B
A=b=c; e $A c=$A
A=1 B=2↵C=3↵e $A$B$C
A=1 B="x y" # note↵↵{ e $A "$B"; }
set -euo pipefail↵export A="x y" B=2↵e "$A" "$B"
python -m torch.distributed.run --nproc_per_node=$TP train.py --m "${MODEL##*/}"
ARGS="--a $TP"↵ARGS="$ARGS --b"↵torchrun train.py $ARGS↵
ARGS=(↵  --a $TP # note↵  --b "x y"↵)↵torchrun train.py "${ARGS[@]}"
if [ "${RANK:-0}" = 0 ]; then↵  exec vllm serve $MODEL --head↵else↵  exec vllm serve $MODEL --worker↵fi
NODES=2; export WORLD=$(($NODES * TP))↵torchrun --nnodes $NODES --world $WORLD t.py
start() {↵  local size=$1; shift↵  vllm serve "$@" -tp $size↵}↵start 4 m --port 1↵start $TP n
e 1 2>&1 | tee /dev/null | cat; e 2
e 1&& e 2;e 3||e 4
timeout 5 e 1; nohup e 2; env A=1 bash -c 'e $A'; time e 3
A=x y=2↵e $A $y
"""


def started_by_bash(folder: Path, script: str) -> list[tuple[str, ...]]:
    """Return the stand-ins' words in the order in which bash starts them."""
    for name in STAND_INS:
        (folder / name).write_text(STAND_IN)
        (folder / name).chmod(0o755)
    log = folder / "log"
    log.touch()
    env = {"PATH": f"{folder}:/usr/bin:/bin", "LOG": str(log), **ENV}
    command = [BASH or "", "-c", script, *ARGUMENTS]
    subprocess.run(command, cwd=folder, env=env, stdin=subprocess.DEVNULL, capture_output=True, timeout=20, check=False)
    calls = log.read_text().split("\n\0")[:-1]
    return [tuple(call.split("\0")[:-1]) for call in calls]


def is_read_as(words: Sequence[str], started: Sequence[str]) -> bool:
    """Return whether words are the ones that were started; those with a `$` are unknown, any number of any words."""
    patterns = ("(?:[^\0]*\0)*" if "$" in word else f"{re.escape(word)}\0" for word in words)
    return re.fullmatch("".join(patterns), "".join(f"{word}\0" for word in started)) is not None


def left_over(found: Sequence[Program], started: Sequence[tuple[str, ...]]) -> list[Program]:
    """Return the programs that bash surely starts by the reader's account, and did not start in that order."""
    rest = iter(started)
    sure = (program for program in found if not program.is_conditional)
    return [program for program in sure if not any(is_read_as(program.words, words) for words in rest)]


@pytest.mark.parametrize("script", SCRIPTS.strip().splitlines())
def test_bash_starts_what_the_reader_says(script: str, tmp_path: Path):
    text = script.replace("↵", "\n")
    started = started_by_bash(tmp_path, text)
    container = a_plain_container(command=("bash", "-c", text), args=ARGUMENTS, env=ENV)
    found = [program for program in programs(container) if program.words[0] in STAND_INS]
    assert left_over(found, started) == []
    assert [words for words in started if not any(is_read_as(program.words, words) for program in found)] == []


def test_the_comparison_sees_a_wrong_word_a_wrong_order_and_one_program_too_many():
    container = a_plain_container(command=("bash", "-c", "e 1; e 2"))
    found = list(programs(container))
    assert left_over(found, [("e", "1"), ("e", "2")]) == []
    for started in ([("e", "1"), ("e", "3")], [("e", "2"), ("e", "1")], [("e", "1")]):
        assert len(left_over(found, started)) == 1
