# Without the package bash-completion: the words of the line, of which bash has
# split some at = and :.
declare -F _get_comp_words_by_ref >/dev/null || _get_comp_words_by_ref() {
    local line=$COMP_LINE word space i
    words=() cword=0
    for ((i = 0; i < ${#COMP_WORDS[@]}; i++)); do
        word=${COMP_WORDS[i]}
        space=${line%%[![:space:]]*}
        line=${line#"$space"}
        line=${line#"$word"}
        if ((i > 0)) && [[ -z $space ]]; then
            words[${#words[@]}-1]+=$word
        else
            words+=("$word")
        fi
        ((i != COMP_CWORD)) || cword=$((${#words[@]} - 1))
    done
    cur=${words[cword]}
    prev=
    ((cword == 0)) || prev=${words[cword-1]}
}
