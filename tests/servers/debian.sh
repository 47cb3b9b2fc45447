#!/bin/sh
# Installs Debian's Redis, PostgreSQL and PgBouncer, beside the newer ones that come as wheels, a
# browser, and Prometheus for its promtool, where that can be done: as root, with apt. Elsewhere their
# tests skip. Starts nothing.
set -eu
[ "$(id -u)" = 0 ] && command -v apt-get >/dev/null || exit 0
wanted=""
if [ "${1-}" = java ]; then
    # What Spark runs on, and nothing else.
    command -v java >/dev/null || wanted=" default-jre-headless"
else
    command -v redis-server >/dev/null || wanted="$wanted redis-server"
    command -v pgbouncer >/dev/null || [ -x /usr/sbin/pgbouncer ] || wanted="$wanted pgbouncer"
    command -v openssl >/dev/null || wanted="$wanted openssl"
    ls /usr/lib/postgresql/*/bin/postgres >/dev/null 2>&1 || wanted="$wanted postgresql"
    # The whole browser would do, where no release of the shell is known.
    command -v chromium-headless-shell >/dev/null || command -v google-chrome >/dev/null ||
        { command -v chromium && ! apt-cache show chromium-headless-shell; } >/dev/null 2>&1 ||
        wanted="$wanted chromium-headless-shell"
    command -v promtool >/dev/null || wanted="$wanted prometheus"
fi
[ -n "$wanted" ] || exit 0
echo "installing$wanted"
# Debian would start each server as it installs it, and make a database; the tests make their own.
mkdir -p /etc/postgresql-common
[ -e /etc/postgresql-common/createcluster.conf ] ||
    echo "create_main_cluster = false" >/etc/postgresql-common/createcluster.conf
rule=/usr/sbin/policy-rc.d
if [ ! -e "$rule" ]; then
    printf '#!/bin/sh\nexit 101\n' >"$rule"
    chmod +x "$rule"
    trap 'rm -f "$rule"' EXIT
fi
# A mirror may fail once, and another apt may be at work, as on a machine that has just started.
patient="-o Acquire::Retries=5 -o DPkg::Lock::Timeout=300"
# shellcheck disable=SC2086  one word an option
apt-get $patient update -qq
# An older release has the whole browser alone.
apt-cache show chromium-headless-shell >/dev/null 2>&1 ||
    wanted=$(echo "$wanted" | sed 's/chromium-headless-shell/chromium/')
# shellcheck disable=SC2086  one word a package
DEBIAN_FRONTEND=noninteractive apt-get $patient install -qq -y --no-install-recommends $wanted \
    >/dev/null
