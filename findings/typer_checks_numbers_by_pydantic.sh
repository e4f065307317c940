#!/usr/bin/env bash
# Typer reads the value of an option that is declared as a whole number.
# Expected: as in earlier versions, whatever Python's int() reads: --copies 2.0 is refused, digits of any script are
# numbers.
# Happens: since Typer has values checked by pydantic, --copies 2.0 is 2, and Arabic or full-width digits, which were
# numbers before, are refused. A program's own check for "2.0" never runs.
# Seen with Typer 0.29.2 (pydantic 2.13 or newer) beside Typer 0.16.0 (click 8.1), Python 3.11.
set -euo pipefail
folder=$(mktemp -d); trap 'rm -rf "$folder"' EXIT; cd "$folder"
python3 -m venv new && new/bin/pip install -q typer==0.29.2
python3 -m venv old && old/bin/pip install -q typer==0.16.0 "click<8.2"
cat > app.py <<'EOF'
import typer

app = typer.Typer(pretty_exceptions_enable=False, add_completion=False, rich_markup_mode=None)


@app.command()
def main(copies: int) -> None:
    print(copies)


app()
EOF
answer() { "$1/bin/python" app.py "$2" 2>/dev/null || echo refused; }
for value in 2.0 ٣ 1_000; do
  echo "$value: Typer 0.16.0 $(answer old "$value"), Typer 0.29.2 $(answer new "$value")"
done
[ "$(answer old 2.0) $(answer new 2.0)" = "refused 2" ]
[ "$(answer old ٣) $(answer new ٣)" = "3 refused" ]
[ "$(answer old 1_000) $(answer new 1_000)" = "1000 1000" ]
