#!/bin/sh
# Adds a user, and prints the user's token for the collector. For a known user, changes the team from today (UTC) on.
#
#   sh add-user.sh jane@example.com platform
#
# To replace a token, remove the user's line from the file `users`, and run this again.
set -eu
cd "$(dirname "$0")"
[ $# -eq 2 ] || { echo "Usage: sh add-user.sh NAME TEAM" >&2; exit 2; }
name=$1 team=$2
case $name in '' | *[:[:space:]]*) echo "A name has no colon and no space." >&2; exit 2 ;; esac
salt=$(sed -n 's/^USER_SALT=//p' .env)
[ -n "$salt" ] || { echo "Set USER_SALT in .env first, as docs/how-to/team.md says." >&2; exit 2; }
# The collector computes the same hash (collector.yaml).
user=$(printf '%s %s' "$name" "$salt" | openssl dgst -sha256 | sed 's/.* //' | cut -c 1-32)

docker compose exec -T clickhouse clickhouse-client --multiquery \
  "--param_user=$user" "--param_name=$name" "--param_team=$team" <<'SQL'
INSERT INTO llm.names (user, name) SELECT {user:String}, {name:String};
INSERT INTO llm.teams (user, since, team) SELECT {user:String}, toDate(now('UTC')), {team:String};
SQL

touch users
if awk -F: -v name="$name" '$1 == name {found = 1} END {exit !found}' users; then
  echo "$name is in team $team from today on, and keeps the token." >&2
  exit
fi
secret=$(openssl rand -hex 24) # random, so its hash needs no salt
echo "$name:{SHA}$(printf %s "$secret" | openssl dgst -sha1 -binary | openssl base64)" >> users
docker compose restart collector >&2 # a running container does not see a file that an editor has replaced
echo "$name:$secret"
