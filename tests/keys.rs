//! The reference of keys, from the command line: every key is there, with everything about it, and
//! the schemas of editors take what the program takes.

use crate::common::{Program, argument, says, words};
use gradwire::recipe::keys::{KeyTable, parts};
use gradwire::recipe::{Recipe, Recipes, Source, flat, schema};
use gradwire_study::experiment::Experiment;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::fs;

fn validator(schema: &Value) -> jsonschema::Validator {
    jsonschema::draft7::new(schema).unwrap()
}

fn json_of(text: &str) -> Value {
    serde_json::to_value(toml::from_str::<toml::Table>(text).unwrap()).unwrap()
}

#[test]
fn every_key_is_shown_on_lines_of_eighty_columns() {
    let program = Program::new();
    let all = program.succeed(&words("list keys"));
    let parts = ["[train]", "scheme = \"sidco\"", "record.network", "dataset = \"ag-news\""];
    says(&all, &parts);
    let experiment = program.succeed(&words("list keys experiment"));
    assert!(experiment.contains("[[claims]]") && experiment.contains("claims[].at_least"));
    for line in all.lines().chain(experiment.lines()) {
        assert!(line.chars().count() <= 80, "{line}");
        assert!(!line.contains("crate::"), "{line}");
    }
}

#[test]
fn a_part_and_a_key_are_shown_by_their_names() {
    let program = Program::new();
    let sidco = program.succeed(&words("list keys scheme.sidco"));
    assert!(sidco.contains("scheme.bounce") && !sidco.contains("dgc"), "{sidco}");
    let batch = program.succeed(&words("list keys train.batch"));
    says(&batch, &["whole number of at least 1", "default 64", "Samples per rank"]);
    assert!(!batch.contains("epochs"), "{batch}");
    let ratio = program.succeed(&words("list keys scheme.dgc.ratio"));
    assert!(
        ratio.contains("number above 0, at most 1")
            && ratio.contains("scheme.ratio.steps")
            && !ratio.contains("scheme.sample"),
        "{ratio}"
    );
    let told = program.succeed(&words("list keys experiment.claims --json"));
    let told: Vec<Value> = serde_json::from_str(&told).unwrap();
    let claim = told[0]["keys"].as_array().unwrap();
    assert!(claim.iter().any(|key| key["path"] == "claims[].measure" && key["required"] == true));
    for (asked, near) in [
        ("train.bach", "`train.batch`"),
        ("scheme.sidko", "`scheme.sidco`"),
        ("experiment.clams", "`claims`"),
        ("lr", "`optimizer.learning_rate`"),
        ("clip_norm", "`train.clip_norm` or `policy.clip_norm`"),
    ] {
        program.refuses(&["list", "keys", asked], 2, &[&format!("did you mean {near}")]);
    }
}

#[test]
fn the_schemas_take_what_is_built_in_and_refuse_other_keys() {
    let program = Program::new();
    let printed = |what: &str| {
        let text = program.succeed(&["list", "schema", what]);
        let schema: Value = serde_json::from_str(&text).unwrap();
        jsonschema::meta::validate(&schema).unwrap();
        validator(&schema)
    };
    let (recipe, experiment) = (printed("recipe"), printed("experiment"));
    let new = |what: &str| program.succeed(&["new", what]);
    let written = Recipes::all().into_iter().map(|(name, text)| (name, text.to_string()));
    let whole = |name: &str| {
        let source = Source { recipe: Some(name.into()), ..Source::default() };
        (format!("{name}, every value"), source.load().unwrap().to_toml().unwrap())
    };
    let whole = Recipes::all().into_iter().map(|(name, _)| whole(&name));
    let recipes = written.chain(whole).chain([("new".into(), new("recipe"))]);
    let built_in = Experiment::built_in().into_iter().map(|(name, text)| (name, text.to_string()));
    let experiments = built_in.chain([("new".into(), new("experiment"))]);
    let takes = |schema: &jsonschema::Validator, name: &str, text: &str| {
        let found = json_of(text);
        let errors: Vec<_> = schema.iter_errors(&found).map(|error| error.to_string()).collect();
        assert!(errors.is_empty(), "{name}: {errors:#?}");
    };
    recipes.for_each(|(name, text)| takes(&recipe, &name, &text));
    experiments.for_each(|(name, text)| takes(&experiment, &name, &text));

    let good = "dataset = 'cifar10'\nmodel = 'resnet20'\nscheme = { kind = 'topk', ratio = 0.1 }\n";
    takes(&recipe, "three keys", good);
    for (from, to) in [
        ("ratio = 0.1", "ratoi = 0.1"),
        ("ratio = 0.1", "ratio = 0"),
        ("ratio = 0.1", "ratio = { start = 0.1 }"),
        ("'topk'", "'topkk'"),
        ("'cifar10'", "'cifar11'"),
        ("model = 'resnet20'", ""),
        ("model", "workers = 0\nmodel"),
        ("model", "train = { batch = 0 }\nmodel"),
        ("model", "train = { bach = 1 }\nmodel"),
        ("model", "network = { link = { mtu = 1 } }\nmodel"),
    ] {
        let bad = good.replacen(from, to, 1);
        assert!(bad != good && !recipe.is_valid(&json_of(&bad)), "{bad}");
    }
    let text = Experiment::built_in()[0].1;
    for (key, wrong) in [("claim", json!([{ "claim": "all" }])), ("recipe", json!({ "trian": {} }))]
    {
        let mut found = json_of(text);
        found[key] = wrong;
        assert!(!experiment.is_valid(&found), "{key}");
    }
}

/// What `gradwire new` prints names alternatives in its comments: `key = "a"  # or "b", "c"` and `# key = "a"`. Each
/// is a file that the program takes, and each command that it names is one.
#[test]
fn every_alternative_that_a_template_names_can_be_taken() {
    let program = Program::new();
    let mut taken = 0;
    let small = ["--dry-run", "--scale", "small"];
    for (what, command, more) in
        [("recipe", "train", &small[..1]), ("experiment", "reproduce", &small)]
    {
        let template = program.succeed(&["new", what]);
        let lines: Vec<&str> = template.lines().collect();
        let mut take = |place: usize, line: &str| {
            let mut lines = lines.clone();
            lines[place] = line;
            let file = program.path("mine.toml");
            fs::write(&file, lines.join("\n")).unwrap();
            program.succeed(&[&[command, argument(&file)], more].concat());
            taken += 1;
        };
        for (place, line) in lines.iter().enumerate() {
            if let Some(assignment) = line.strip_prefix("# ").filter(|rest| rest.contains(" = ")) {
                take(place, assignment);
            }
            let Some((assignment, comment)) = line.split_once('#') else { continue };
            let alternatives = comment.trim().strip_prefix("or ").unwrap_or_default();
            let alternatives = alternatives.split([';', '`']).next().unwrap().split('"');
            for word in alternatives.skip(1).step_by(2) {
                let (key, _) = assignment.split_once(" = ").unwrap();
                take(place, &format!("{key} = {word:?}"));
            }
        }
        for command in template.split('`').filter(|code| code.starts_with("gradwire list")) {
            program.succeed(&command.split(' ').skip(1).collect::<Vec<_>>());
        }
    }
    assert!(taken > 8, "{taken}");
}

fn all_keys(parts: &[KeyTable]) -> BTreeSet<&str> {
    parts.iter().flat_map(|part| &part.keys).map(|key| key.path.as_str()).collect()
}

/// What a dry run writes is what the reference lists: each of its keys is there, with a meaning.
#[test]
fn every_value_in_force_has_its_key() {
    let recipe = parts(&Recipe::schema());
    let known = all_keys(&recipe);
    for (name, _) in Recipes::all() {
        let told = Source { recipe: Some(name.clone()), ..Source::default() }.load().unwrap();
        let told = flat(toml::from_str(&told.to_toml().unwrap()).unwrap());
        let mut found: BTreeSet<String> = told.into_keys().collect();
        found.retain(|path| !path.ends_with(".kind") && !path.ends_with(".by"));
        let unknown: Vec<_> = found.iter().filter(|path| !known.contains(path.as_str())).collect();
        assert!(unknown.is_empty(), "{name}: {unknown:?}");
    }
    let experiment = parts(&schema::of::<Experiment>());
    for part in recipe.iter().chain(&experiment) {
        for key in &part.keys {
            assert!(!key.about.is_empty() && !key.values.is_empty(), "{key:?}");
            let said = key.about.split_once("Default ");
            let said = said.and_then(|(_, said)| said.split([' ', ':']).next());
            if let (Some(said), Some(default)) = (said, &key.default) {
                let said = said.trim_end_matches('.').trim_matches('`');
                assert_eq!(said, default.trim_matches('"'), "a definition says another: {key:?}");
            }
        }
    }
}

#[test]
fn all_that_a_file_leaves_out_is_named_at_once_with_the_file() {
    let program = Program::new();
    let file = program.path("mine.toml");
    let refused = |command: &str, text: &str| {
        fs::write(&file, text).unwrap();
        program.refuse(&[command, argument(&file)], 2)
    };
    let error = refused("train", "workers = 2\n[train]\nbatch = 8\n");
    let parts =
        ["mine.toml", "`dataset` (what is trained on)", "`model`", "`scheme`", "are missing"];
    says(&error, &parts);
    let error =
        refused("train", "dataset = 'cifar10'\nmodel = 'resnet20'\nscheme = { ratio = 0.1 }\n");
    assert!(error.contains("`scheme.kind` is missing"), "{error}");
    let error =
        refused("train", "dataset = 'cifar10'\nmodel = 'resnet20'\nscheme = 'topk'\nworkers = 0\n");
    assert!(error.contains("mine.toml: workers = 0"), "{error}");
    let error =
        refused("reproduce", "title = 'A question'\n[[arms]]\nname = 'dense'\n[[claims]]\n");
    let all = [
        "mine.toml",
        "`baseline`",
        "`tasks`",
        "`scales`",
        "`arms[0].label`",
        "`claims[0].measure`",
    ];
    says(&error, &all);
}
