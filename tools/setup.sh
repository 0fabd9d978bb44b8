# Sourced by ./run: installs missing Debian packages. Does not know what they are for (tools/setup_packages.txt does).
# shellcheck shell=bash

# packages_of GROUP: the package names of a group.
packages_of() {
  awk -v group="$1" '$1 == group { print $2 }' "$root/tools/setup_packages.txt"
}

# missing_packages GROUP...: those not installed, one a line. One dpkg-query for all.
missing_packages() {
  local group wanted=()
  for group in "$@"; do mapfile -t -O "${#wanted[@]}" wanted < <(packages_of "$group"); done
  comm -23 <(printf '%s\n' "${wanted[@]}" | sort -u) \
    <(dpkg-query -W -f='${db:Status-Status} ${Package}\n' "${wanted[@]}" 2>/dev/null |
      awk '$1 == "installed" { print $2 }' | sort -u)
}

# apt ARG...: apt-get without questions; as root, or through sudo. What it says goes to build/setup.log.
apt() {
  local as_root=()
  if [ "$(id -u)" -ne 0 ]; then as_root=(sudo); fi
  mkdir -p "$root/build"
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -y -q -o Dpkg::Use-Pty=0 -o DPkg::Lock::Timeout=300 "$@" \
    >> "$root/build/setup.log" 2>&1
}

# install_packages required|optional GROUP...: returns 1 if packages are still missing. `required` then also says what to do.
install_packages() {
  local need=$1
  shift
  if ! command -v dpkg-query > /dev/null; then
    say "this is not Debian: install the counterparts of tools/setup_packages.txt yourself; going on with what is here"
    return 0
  fi
  local missing
  mapfile -t missing < <(missing_packages "$@")
  [ "${#missing[@]}" -eq 0 ] && return 0
  if [ "$(id -u)" -eq 0 ] || command -v sudo > /dev/null; then
    say "installing ${#missing[@]} Debian packages: ${missing[*]}"
    if [ -z "${apt_lists_fresh:-}" ]; then
      apt update || say "apt-get update failed; trying with the package lists that are here"
      apt_lists_fresh=1
    fi
    apt install --no-install-recommends "${missing[@]}" && return 0
    mapfile -t missing < <(missing_packages "$@")
    [ "${#missing[@]}" -eq 0 ] && return 0
    if [ "$need" = required ]; then tail -n 15 "$root/build/setup.log" >&2; fi
  fi
  if [ "$need" = required ]; then
    say "Debian packages are missing and cannot be installed from here. As root, run:"
    say "  apt-get update && apt-get install --no-install-recommends ${missing[*]}"
  fi
  return 1
}
