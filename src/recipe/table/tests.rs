use super::*;
use crate::recipe::average;
use gradwire_exchange::Bucketing;
use gradwire_exchange::Scheme;
use std::fs;

fn load(recipe: Option<&str>, sets: &[&str]) -> Result<Recipe> {
    Source { recipe: recipe.map(Into::into), ..Source::of(sets.iter().copied()) }.load()
}

fn refusal(sets: &[&str]) -> String {
    format!("{:#}", load(None, sets).unwrap_err())
}

#[test]
fn every_built_in_recipe_is_valid_and_survives_its_own_toml() {
    for (name, text) in Recipes::all() {
        let recipe = load(Some(&name), &[]).unwrap_or_else(|e| panic!("{name}: {e:#}"));
        assert_eq!(recipe.name, name);
        assert!(Recipes::headline(text).len() > 10, "{name} has no headline");
        assert_eq!(Recipe::from_toml(&recipe.to_toml().unwrap()).unwrap(), recipe);
    }
}

#[test]
fn sets_reach_every_depth_and_keep_their_types() {
    let recipe = load(
        None,
        &["train.batch=7", "scheme.ratio=0.5", "name=probe", "train.clip_norm=2.5", "seed=9"],
    )
    .unwrap();
    assert_eq!((recipe.train.batch, recipe.name.as_str(), recipe.seed), (7, "probe", 9));
    assert_eq!(recipe.train.clip_norm, Some(2.5));
}

#[test]
fn another_kind_drops_the_old_kinds_keys() {
    let recipe = load(None, &["scheme=dense"]).unwrap();
    assert_eq!(recipe.scheme.about().name, "dense");
    let ema = "average={ kind = \"ema\", decay = 0.9 }";
    let recipe = load(None, &[ema, "average.kind=lookahead"]).unwrap();
    assert_eq!(recipe.average, average::Config::Lookahead(average::Lookahead::default()));
    assert_eq!(load(None, &[ema, "average=none"]).unwrap().average, average::Config::default());
}

#[test]
fn a_parts_settings_are_those_of_its_new_kind_in_any_order() {
    let sets = ["scheme.ratio=0.1", "scheme.kind=sidco", "optimizer=adamw"].map(String::from);
    let rate = ("optimizer.learning_rate", Value::Float(0.003));
    let source = Source { flags: vec![rate], sets: sets.into(), ..Source::default() };
    let table = Table::try_from(source.load().unwrap()).unwrap();
    assert_eq!(table["scheme"]["kind"].as_str(), Some("sidco"));
    assert_eq!(table["scheme"]["ratio"].as_float(), Some(0.1));
    assert_eq!(table["optimizer"]["kind"].as_str(), Some("adamw"));
    assert_eq!(table["optimizer"]["learning_rate"].as_float(), Some(0.003));
    // Of one setting the last word counts.
    let (ratio, scheme) = ("scheme.ratio=0.01", "scheme={ kind = 'topk', ratio = 0.1 }");
    for (sets, counts) in [([ratio, scheme], 0.1), ([scheme, ratio], 0.01)] {
        let table = Table::try_from(load(None, &sets).unwrap()).unwrap();
        assert_eq!(table["scheme"]["ratio"].as_float(), Some(counts));
    }
    let kinds = ["scheme={ kind = 'topk', ratio = 0.1 }", "scheme=dense"];
    assert_eq!(load(None, &kinds).unwrap().scheme.about().name, "dense");
}

#[test]
fn a_recipe_says_what_is_in_force_and_another_scheme_brings_its_own() {
    let dgc = load(Some("cifar10-dgc"), &["record.every=7"]).unwrap();
    let text = dgc.to_toml().unwrap();
    for line in ["momentum_correction = 0.9", "measure_every = 7", "bucketing = \"whole\""] {
        assert!(text.contains(line), "{line}\n{text}");
    }
    let read = Recipe::from_toml(&text).unwrap();
    assert_eq!(read, dgc);
    let source = Source { sets: vec!["scheme=topk".into()], ..Source::default() };
    let topk = source.load_on(&read).unwrap();
    assert_eq!(topk.policy().momentum_correction, Some(0.0));
    let own = load(Some("cifar10-dgc"), &["policy.momentum_correction=0.5"]).unwrap();
    assert_eq!(source.load_on(&own).unwrap().policy().momentum_correction, Some(0.5));
}

/// Writes a recipe into a file that has its name.
fn written_out(folder: &Path, recipe: &Recipe) -> String {
    let file = folder.join(format!("{}.toml", recipe.name));
    fs::write(&file, recipe.to_toml().unwrap()).unwrap();
    file.to_str().unwrap().to_string()
}

#[test]
fn a_written_out_recipe_is_changed_as_the_one_that_it_was_written_from() {
    let folder = tempfile::tempdir().unwrap();
    for (name, first, then) in [
        ("cifar10-dense", "seed=1", "scheme=dgc"),
        ("cifar10-dense", "optimizer={ kind = 'sgd', momentum = 0 }", "scheme=dgc"),
        ("cifar10-dense", "seed=1", "scheme=signsgd"),
        ("cifar10-dense", "seed=1", "scheme=casq"),
        ("cifar10-dense", "policy.dense_below=7", "scheme=casq"),
        ("cifar10-dgc", "seed=1", "scheme=topk"),
        ("cifar10-dgc", "policy.momentum_correction=0.5", "scheme=topk"),
        ("cifar10-powersgd", "seed=1", "scheme.start_step=1000"),
        ("cifar10-topk", "seed=1", "record.every=3"),
        ("cifar10-topk", "policy.measure_every=5", "record.every=3"),
        ("first-look", "exchange.topology=server", "exchange.topology=allgather"),
    ] {
        let file = written_out(folder.path(), &load(Some(name), &[first]).unwrap());
        let expected = load(Some(name), &[first, then]).ok();
        assert_eq!(load(Some(&file), &[then]).ok(), expected, "{name} {first} {then}");
    }
}

#[test]
fn a_written_out_recipe_leaves_defaults_to_the_scheme_and_keeps_its_own_policy() {
    let folder = tempfile::tempdir().unwrap();
    let dense = load(Some("cifar10-dense"), &["policy.dense_below=7"]).unwrap();
    let file = written_out(folder.path(), &dense);
    let refused = format!("{:#}", load(Some(&file), &["scheme=dgc"]).unwrap_err());
    assert!(refused.contains("policy.momentum_correction = 0.9 takes the place"), "{refused}");
    let casq = load(Some(&file), &["scheme=casq"]).unwrap().policy();
    assert_eq!((casq.bucketing, casq.dense_below), (Some(Bucketing::Parameter), Some(7)));

    // A layer changes it as a flag does.
    let table = Source { recipe: Some(file), ..Source::default() }.table().unwrap();
    let signs = Recipe::layered([&table], &["scheme=signsgd".into()]).unwrap();
    let signs = Recipe::from_table(signs).unwrap().policy();
    assert_eq!((signs.bucketing, signs.dense_below), (Some(Bucketing::Parameter), Some(7)));

    let powersgd = load(Some("cifar10-powersgd"), &[]).unwrap();
    let file = written_out(folder.path(), &powersgd);
    let later = load(Some(&file), &["scheme.start_step=1000"]).unwrap();
    assert_eq!(later.policy().warmup_steps, Some(999));
}

#[test]
fn a_file_that_says_what_no_server_sends_back_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("mine.toml");
    let parts = "dataset = 'synthetic-cifar10'\nmodel = 'resnet20'\nscheme = 'topk'\n";
    fs::write(&file, format!("{parts}[exchange]\ndownlink = 'exact'\n")).unwrap();
    let refused = format!("{:#}", load(file.to_str(), &[]).unwrap_err());
    assert!(refused.contains("exchange.topology = \"server\""), "{refused}");
}

#[test]
fn what_a_server_sends_back_is_told_where_there_is_one() {
    let server = load(None, &["exchange.topology=server"]).unwrap();
    let told = server.to_toml().unwrap();
    assert!(told.contains("downlink = \"exact\""), "{told}");
    assert_eq!(Recipe::from_toml(&told).unwrap(), server);
    assert!(!load(None, &[]).unwrap().to_toml().unwrap().contains("downlink"));
}

#[test]
fn unknown_keys_and_names_are_refused_with_the_nearest() {
    for (set, near) in [
        ("train.bach=3", "`batch`"),
        ("scheme.ratoi=0.1", "`ratio`"),
        ("model=resnet21", "`resnet20`"),
        ("scheme=topkk", "`topk`"),
        ("dataset=synthetic-cifar11", "`synthetic-cifar10`"),
        ("workes=3", "`workers`"),
        ("schedule.kind=cosin", "`cosine`"),
        ("lr=0.1", "`optimizer.learning_rate`"),
        ("clip_norm=1", "`train.clip_norm` or `policy.clip_norm`"),
    ] {
        let message = refusal(&[set]);
        assert!(message.contains(&format!("did you mean {near}")), "{set}: {message}");
    }
    let message = format!("{:#}", load(Some("sidco"), &[]).unwrap_err());
    assert!(message.contains("gradwire reproduce sidco"), "{message}");
    let message = format!("{:#}", load(Some("first-lok"), &[]).unwrap_err());
    assert!(message.contains("did you mean `first-look`"), "{message}");
}

#[test]
fn wrong_types_and_impossible_combinations_are_refused() {
    for (sets, part) in [
        (vec!["train.batch=many"], "expected a whole number"),
        (vec!["workers=1.5"], "expected a whole number"),
        (vec!["scheme.ratio=abc"], "a ratio is a number such as 0.01"),
        (vec!["scheme=qsgd", "scheme.levels=1.5"], "expected a whole number"),
        (vec!["scheme=dense", "scheme.x=1"], "it has no settings"),
        (vec!["samples.train=0"], "samples.train"),
        (
            vec!["average={kind='ema',decay=1.0}"],
            "average.decay = 1.0 must be a number from 0, below 1",
        ),
        (vec!["average={kind='ema',decay=nan}"], "average.decay = NaN"),
        (vec!["average={kind='ema',every=0}"], "average.every = 0"),
        (vec!["average={kind='lookahead',decay=-0.1}"], "average.decay = -0.1"),
        (vec!["average={kind='lookahead',every=0}"], "average.every = 0"),
        (vec!["average={kind='lookahead',ramp=-1.0}"], "average.ramp = -1.0"),
        (vec!["schedule={kind='constant',warmup=99.0}"], "schedule.warmup = 99"),
        (vec!["schedule={kind='step',every=0.0}"], "schedule.every = 0.0 must be a number above 0"),
        (vec!["schedule={kind='multi-step',at=[2.0,1.0]}"], "schedule.at = [2.0, 1.0]"),
        (vec!["schedule={kind='multi-step',at=[]}"], "schedule.at = []"),
        (vec!["schedule={kind='multi-step',at=[1.0],factor=nan}"], "schedule.factor = NaN"),
        (vec!["schedule={kind='cosine',floor=1.5}"], "schedule.floor = 1.5"),
        (vec!["schedule={kind='triangular',start=-0.1}"], "schedule.start = -0.1"),
        (vec!["schedule={kind='triangular',peak=1.0}"], "schedule.peak = 1.0"),
        (vec!["schedule={kind='triangular',end=1.0}"], "schedule.end = 1.0"),
        (vec!["optimizer.norm_bias_rate=0.0"], "optimizer.norm_bias_rate = 0.0"),
        (vec!["optimizer.norm_bias_rate=-1.0"], "optimizer.norm_bias_rate = -1.0"),
        (vec!["optimizer.norm_bias_rate=nan"], "optimizer.norm_bias_rate = NaN"),
        (vec!["optimizer.learning_rate=inf"], "optimizer.learning_rate = inf must be"),
        (vec!["optimizer={kind='muon',iterations=0}"], "optimizer.iterations = 0"),
        (vec!["optimizer={kind='muon',iterations=21}"], "whole number from 1 to 20"),
        (vec!["train.label_smoothing=1e300"], "= 1e300 must"),
        (vec!["train.batch=0"], "train.batch"),
        (
            vec!["train.batch=6148914691236517206", "train.accumulate=3"],
            "write a smaller train.batch",
        ),
        (vec!["train.batch=4611686018427387904"], "write a smaller train.batch"),
        (vec!["average.kind=none", "average.bogus=3"], "it has no settings"),
        (vec!["average.decay=0.9"], "`average.kind` is missing"),
        (vec!["workers=-1"], "workers"),
        (vec!["model=textcnn"], "models for it: resnet, resnet8, resnet20"),
        (vec!["train.label_smoothing=1.5"], "label_smoothing"),
        (vec!["scheme.ratio=0"], "ratio"),
        (vec!["scheme.ratio=nan"], "ratio"),
        (vec!["train.clip_norm=-1"], "clip_norm"),
        (vec!["exchange.timeout=0"], "timeout"),
        (vec!["schedule.warmup=99"], "warmup"),
        (vec!["optimizer.momentum=0", "optimizer.nesterov=true"], "nesterov"),
        (vec!["name=../elsewhere"], "folder"),
        (vec!["train.batch.x=1"], "not a table"),
        (vec!["train"], "no '='"),
        (vec!["train..batch=1"], "dots"),
    ] {
        let message = refusal(&sets);
        assert!(message.contains(part), "{sets:?}: {message}");
    }
}

#[test]
fn a_comma_parts_values_unless_it_is_within_one() {
    let words = |text: &str| -> Vec<String> {
        split_values(text).iter().map(|value| value.as_str().unwrap_or("-").to_string()).collect()
    };
    assert_eq!(words("dense, topk,"), ["dense", "topk"]);
    assert_eq!(words("'a,b', c"), ["a,b", "c"]);
    assert_eq!(words(r#""a\",b", c"#), ["a\",b", "c"]);
    assert_eq!(words("it's, d"), ["it's", "d"]);
    assert_eq!(split_values("0.1, [5, 9], 3").len(), 3);
    let tables = split_values(r#"{ kind = "qsgd", levels = 3 }, { note = 'a}, b' }, dense"#);
    assert_eq!(tables.len(), 3);
    assert_eq!(tables[0]["levels"], Value::Integer(3));
    assert_eq!(tables[1]["note"], Value::String("a}, b".into()));
    // What never ends is one value, whose text the refusal shows.
    assert_eq!(words("{ kind = a, b"), ["{ kind = a, b"]);
}

#[test]
fn rules_name_a_scheme_or_a_ratio_of_the_recipes_own() {
    let with =
        |rules: &str| load(None, &[&format!("policy.rules={rules}"), "scheme.feedback=false"]);
    let recipe = with("[{match='fc.*',scheme='dense'},{match='*1*',ratio=0.5}]").unwrap();
    assert_eq!(
        recipe.scheme_in_words(),
        "topk(feedback=false, ratio=0.01), dense for fc.*, topk(feedback=false, ratio=0.5) for *1*"
    );
    assert_eq!(Recipe::from_toml(&recipe.to_toml().unwrap()).unwrap(), recipe);
    for (rules, said) in [
        (
            "[{match='a',scheme='dense',ratio=0.5}]",
            "`policy.rules[0]`: a ratio is that of the recipe's",
        ),
        ("[{match='a',scheme='dens'}]", "unknown variant `dens`"),
        ("[{match='a'}]", "`policy.rules[0]`: write a scheme"),
        ("[{ratio=0.5}]", "`policy.rules[0].match`"),
        ("[{match='a',ratio=7.0}]", "rule `a` does not go: scheme `topk`: ratio = 7"),
        ("[{match='a',scheme={kind='qsgd',feedback=true}}]", "rule `a` does not go: "),
    ] {
        let error = format!("{:#}", with(rules).unwrap_err());
        assert!(error.contains(said), "{error}");
    }
    let error = refusal(&["scheme=dense", "policy.rules=[{match='a',ratio=0.5}]"]);
    assert!(error.contains("scheme \"dense\" with this ratio: "), "{error}");
    let downlink = "exchange={topology='server',downlink='compressed'}";
    let error = refusal(&[downlink, "policy.rules=[{match='a',scheme='powersgd'}]"]);
    assert!(error.contains("scheme `powersgd` has nothing to compress the mean by"), "{error}");
}

#[test]
fn another_global_batch_at_the_same_rate_is_noted() {
    let note = |sets: &[&str]| {
        let source =
            Source { recipe: Some("cifar10-dense".into()), ..Source::of(sets.iter().copied()) };
        source.batch_note(&source.load().unwrap())
    };
    let said = note(&["workers=8"]).unwrap();
    assert!(said.contains("512 samples") && said.contains("128 in the recipe"), "{said}");
    assert!(said.ends_with("optimizer.learning_rate = 0.4"), "{said}");
    assert!(note(&["train.accumulate=4"]).unwrap().ends_with("= 0.4"));
    for kind in ["kind='adamw'", "kind='sgd',sign=true,momentum=0,nesterov=false"] {
        let optimizer = format!("optimizer={{{kind},learning_rate=0.1}}");
        let said = note(&["workers=8", &optimizer]).unwrap();
        assert!(said.ends_with("the square root: optimizer.learning_rate = 0.2"), "{said}");
    }
    assert_eq!(note(&["workers=4", "train.batch=32"]), None);
    assert_eq!(note(&["workers=8", "optimizer.learning_rate=0.4"]), None);
}

#[test]
fn a_setting_of_another_kind_and_a_list_without_brackets_say_what_to_write() {
    let refused = |sets: &[&str]| load(Some("cifar10-dense"), sets).unwrap_err().to_string();
    let ratio = refused(&["scheme.ratio=0.01"]);
    assert!(
        ratio.contains("dense has no such setting") && ratio.contains("--scheme topk"),
        "{ratio}"
    );
    assert!(!ratio.contains("did you mean"), "{ratio}");
    let every = refused(&["schedule.every=3"]);
    assert!(
        every.contains("cosine has no such setting") && every.contains("--schedule step"),
        "{every}"
    );
    let list = refused(&["schedule={ kind = 'multi-step', at = '5,9' }"]);
    assert!(list.contains("expected a list") && list.ends_with("in brackets: [5,9]"), "{list}");
}

/// A program's own scheme stands in the place of the recipe's, which is fine.
#[test]
fn an_own_scheme_without_magnitudes_is_refused_beside_an_outer_momentum() {
    let recipe = load(None, &["scheme=dense", "local.steps=4", "outer.momentum=0.9"]).unwrap();
    let with = |scheme: &dyn Scheme| {
        recipe.may_run_with(&recipe.policy(), recipe.optimizer.definition(), scheme)
    };
    with(&recipe.scheme).unwrap();
    let own = scheme_of("{ kind = 'signsgd', magnitude = 'unit' }").unwrap();
    let refused = with(&own).unwrap_err().to_string();
    assert!(refused.starts_with("what scheme signsgd sends has no magnitude"), "{refused}");
}
