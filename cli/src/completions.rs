//! `gradwire completions`: scripts that complete commands, options, and the words that are built in.

use clap::builder::PossibleValuesParser;
use clap::{Arg, Command};
use clap_complete::Shell;
use gradwire::recipe::Recipes;
use gradwire_datasets as datasets;
use gradwire_exchange::Scheme;
use gradwire_exchange::SchemeConfig;
use gradwire_models as models;
use gradwire_study::experiment::Experiment;
use std::io;

pub(super) fn print(shell: Shell, command: Command) {
    clap_complete::generate(shell, &mut with_words(command), "gradwire", &mut io::stdout());
}

/// The command line with the built-in words as the only possible ones. Nothing is parsed with it, so
/// that files can be named all the same.
fn with_words(command: Command) -> Command {
    let name = command.get_name().to_string();
    let given = move |arg: Arg| match words(&name, &arg) {
        words if words.is_empty() => arg,
        words => arg.value_parser(PossibleValuesParser::new(words)),
    };
    command.mut_args(given).mut_subcommands(with_words)
}

/// What is built in that an argument of a command may name.
fn words(command: &str, arg: &Arg) -> Vec<String> {
    let own = |name: &'static str| name.to_string();
    match (command, arg.get_id().as_str()) {
        ("reproduce", "name") => Experiment::built_in().into_iter().map(|(name, _)| name).collect(),
        (_, "recipe") => Recipes::all().into_iter().map(|(name, _)| name).collect(),
        (_, "scheme" | "schemes" | "against") => {
            SchemeConfig::all().iter().map(|scheme| own(scheme.about().name)).collect()
        }
        (_, "model") => models::Config::all().iter().map(|model| own(model.name())).collect(),
        (_, "dataset") => datasets::Config::all().iter().map(|data| own(data.name())).collect(),
        _ => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn scripts_know_recipes_experiments_schemes_models_and_data_sets() {
        let command = with_words(super::super::Cli::command());
        let offered = |of: &str, id: &str| -> Vec<String> {
            let command = command.find_subcommand(of).unwrap();
            let arg = command.get_arguments().find(|arg| arg.get_id() == id).unwrap();
            arg.get_possible_values().iter().map(|value| value.get_name().to_string()).collect()
        };
        for (of, id, word) in [
            ("train", "recipe", "cifar10-topk"),
            ("train", "scheme", "powersgd"),
            ("train", "model", "textcnn"),
            ("sweep", "recipe", "first-look"),
            ("sweep", "dataset", "cifar100"),
            ("reproduce", "name", "sidco"),
            ("advise", "against", "dqsgd"),
        ] {
            let offered = offered(of, id);
            assert!(offered.iter().any(|known| known == word), "{of} {id}: {offered:?}");
        }
    }
}
