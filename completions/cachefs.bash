# SPDX-License-Identifier: Apache-2.0
# bash completion for cachefs(1). Commands, options and their values are read from --help, so that
# what is offered is what the installed program knows.

# Mount points of cachefs, one a line.
_cachefs_mounts() {
	local id parent device root point rest

	while read -r id parent device root point rest; do
		[[ $rest == *" - fuse.cachefs "* ]] && printf '%b\n' "${point//\\/\\0}"
	done </proc/self/mountinfo
}

# Names of volumes in cachefs.conf(5).
_cachefs_volumes() {
	sed -n 's/^[[:blank:]]*\[\([^]]*\)\][[:blank:]]*$/\1/p' \
		"${_cachefs_conf:-/etc/cachefs/cachefs.conf}" 2>/dev/null
}

# Names of cache groups, of cachefs.conf(5) and of the command lines of mounts: a mount that is asked
# for its options may not answer.
_cachefs_groups() {
	{
		sed -n 's/^[[:blank:]]*cache-group[[:blank:]]*=[[:blank:]]*//p' \
			"${_cachefs_conf:-/etc/cachefs/cachefs.conf}"
		cat /proc/[0-9]*/cmdline | tr '\0,' '\n\n' |
			sed -n -e 's/^\(--\)\{0,1\}cache-group=//p' -e '/^--cache-group$/{n;p;}'
	} 2>/dev/null | sort -u
}

# What --help of the program, or of a command, says.
_cachefs_help() {
	"$_cachefs_program" "$@" --help 2>/dev/null
}

_cachefs_commands() {
	_cachefs_help | sed -n '/^Commands:/,/^$/s/^  \([a-z][a-z0-9-]*\) .*/\1/p'
}

# Options of a command without the dashes: "NAME" for flags, "NAME ARGUMENT" for the others.
_cachefs_options() {
	_cachefs_help "$1" | sed -n 's/^  --\([^ ]*\)\( \([^ ][^ ]*\)\)\{0,1\}.*/\1 \3/p'
}

_cachefs_offer() {
	local IFS=$'\n'

	COMPREPLY+=($(compgen -W "$1" -- "$2"))
}

_cachefs_files() {
	local IFS=$'\n'

	COMPREPLY+=($(compgen -f -- "$1"))
}

# Values of an option: groups, the choices that --help lists, or files where it names one.
_cachefs_values() {
	local argument

	if [[ $2 == cache-group || $2 == rotate-group-key ]]; then
		_cachefs_offer "$(_cachefs_groups)" "$3"
		return
	fi
	argument=$(_cachefs_options "$1" | sed -n "s/^$2 //p" | head -n 1)
	case $argument in
	*'|'*) _cachefs_offer "${argument//|/$'\n'}" "$3" ;;
	FILE | PATH | DIR | LIST | PLACE)
		compopt -o filenames 2>/dev/null
		_cachefs_files "$3"
		;;
	esac
}

# The last of a comma list of mount options, of which readline completes the word $2.
_cachefs_mount_list() {
	local last=${1##*,} typed before

	compopt -o nospace 2>/dev/null
	if [[ $last == *=* ]]; then
		typed=${last#*=}
		_cachefs_values mount "${last%%=*}" "$typed"
	else
		typed=$last
		_cachefs_offer "$(_cachefs_options mount | sed 's/ ..*/=/; s/ $//')" "$typed"
	fi
	before=${2%"$typed"}
	COMPREPLY=("${COMPREPLY[@]/#/$before}")
}

# Words that the first line of a command's help lists as alternatives: "get|set|list".
_cachefs_actions() {
	_cachefs_help "$1" | sed -n '1s/^usage: cachefs [a-z]* \([a-z][a-z|]*\)\( .*\)\{0,1\}$/\1/p' |
		tr '|' '\n'
}

_cachefs() {
	local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD - 1]}
	local _cachefs_program=${COMP_WORDS[0]} command=${COMP_WORDS[1]} first=$COMP_CWORD list

	COMPREPLY=()
	if ((COMP_CWORD == 1)); then
		_cachefs_offer "$(_cachefs_commands)"$'\n--help' "$cur"
		return
	fi
	# Readline makes words of their own of the "=" in NAME=VALUE and of the VALUE.
	while [[ ${COMP_WORDS[first]} == [=:] || ${COMP_WORDS[first - 1]} == [=:] ]]; do
		((first--))
	done
	[[ $cur == "=" ]] && cur=
	if [[ $command == mount && ${COMP_WORDS[first - 1]} == -o ]]; then
		list=$(IFS=; echo "${COMP_WORDS[*]:first:COMP_CWORD-first+1}")
		_cachefs_mount_list "$list" "$cur"
		return
	fi
	((first < COMP_CWORD)) && prev=${COMP_WORDS[first]}
	if [[ $prev == --* ]]; then
		_cachefs_values "$command" "${prev#--}" "$cur"
		[[ $(_cachefs_options "$command" | sed -n "s/^${prev#--} //p") ]] && return
	fi
	if [[ $cur == -* ]]; then
		_cachefs_offer "$(_cachefs_options "$command" | sed 's/ .*//; s/^/--/')"$'\n--help' "$cur"
		return
	fi
	((COMP_CWORD == 2)) && _cachefs_offer "$(_cachefs_actions "$command")" "$cur"
	[[ $command == mount ]] && _cachefs_offer "$(_cachefs_volumes)" "$cur"
	_cachefs_offer "$(_cachefs_mounts)" "$cur"
	compopt -o filenames 2>/dev/null
	_cachefs_files "$cur"
}

complete -F _cachefs cachefs
