// zero completion bash|zsh
#include <iostream>

#include "verbs.h"

namespace zero::tool {
namespace {

// Options are those that the verb's own --help lists, so a new one needs nothing here.
constexpr const char* kBash = R"SH(# eval "$(zero completion bash)"
_zero() {
  local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD-1]} verb=${COMP_WORDS[1]}
  COMPREPLY=()
  if [ "$COMP_CWORD" = 1 ] || { [ "$verb" = help ] && [ "$COMP_CWORD" = 2 ]; }; then
    COMPREPLY=($(compgen -W "@verbs@" -- "$word"))
  elif [ "$before" = --set ]; then
    COMPREPLY=($(compgen -S = -W "$("${COMP_WORDS[0]}" config --keys 2>/dev/null)" -- "$word"))
    compopt -o nospace
  elif [[ $word == -* ]]; then
    COMPREPLY=($(compgen -W "$("${COMP_WORDS[0]}" "$verb" --help 2>/dev/null | grep -oE -- '--[a-z0-9][a-z0-9-]*')" -- "$word"))
  fi
}
complete -o default -F _zero zero
)SH";

constexpr const char* kZsh = R"SH(# eval "$(zero completion zsh)"
_zero() {
  local verb=${words[2]}
  if (( CURRENT == 2 )) || { [[ $verb == help ]] && (( CURRENT == 3 )); }; then
    compadd -- @verbs@
  elif [[ ${words[CURRENT-1]} == --set ]]; then
    compadd -S = -- ${(f)"$(${words[1]} config --keys 2>/dev/null)"}
  elif [[ ${words[CURRENT]} == -* ]]; then
    compadd -- ${(f)"$(${words[1]} $verb --help 2>/dev/null | grep -oE -- '--[a-z0-9][a-z0-9-]*' | sort -u)"}
  else
    _files
  fi
}
compdef _zero zero
)SH";

std::string with_verbs(std::string script) {
  std::string names = "help";
  for (const Verb& verb : verbs()) names.append(" ").append(verb.name);
  const std::string mark = "@verbs@";
  script.replace(script.find(mark), mark.size(), names);
  return script;
}

}  // namespace

int run_completion(int argc, char** argv) {
  std::string shell;
  CLI::App app(
      "zero completion bash|zsh\nPrints a script that completes verbs, options and keys: eval \"$(zero "
      "completion bash)\"");
  app.add_option("shell", shell)->required()->check(CLI::IsMember({"bash", "zsh"}));
  if (!parse(app, argc, argv)) return 0;
  std::cout << with_verbs(shell == "bash" ? kBash : kZsh);
  return 0;
}

}  // namespace zero::tool
