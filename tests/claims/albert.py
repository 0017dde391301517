"""Studies of ALBERT: python -m tests.claims.albert NAME (study.py says how)."""
import albert
from tests.claims.pictures import dots
from tests.claims.study import Claim, counted, main, read, run_all, run_name, study

PROGRAM = "albert.py"
SHORT = ["--length", 16, "--batch", 64, "--lr", 0.08, "--steps", 3000]  # the demo's first run
WORDS = [*SHORT, "--objective", "none", "--dev_examples", 11000, "--held_out", 0.2]
PERCENT = "masked word accuracy, %"


def run_arms(options, arms):
    """{(arm, seed): run folder} of --pretrain with the flags of {(arm, seed): flags}."""
    commands = {}
    for (arm, seed), flags in arms.items():
        words = [PROGRAM, "--pretrain", *flags, "--seed", seed, *options.flags]
        commands[run_name(arm, seed)] = words
    return dict(zip(arms, run_all(options, commands).values()))


def word_accuracy(options, arms):
    """{arm: [masked word accuracy of each seed, in percent]} of {arm: flags}."""
    keyed = {(arm, seed): flags for arm, flags in arms.items() for seed in range(options.seeds)}
    values = {arm: [] for arm in arms}
    for (arm, _), folder in run_arms(options, keyed).items():
        values[arm].append(100 * read(folder / "done.json")["mlm_accuracy"])
    return {"values": values}


@study(
    "1 core-hour",
    Claim("order", "A model trained on sentence order (SOP) knows it better than a model of NSP, "
          "which is at chance", "86.5 against 52.0, without either loss 53.3 (Table 5)",
          [("sop on SOP", "nsp on SOP"), ("53%", "nsp on SOP")]),
    picture=dots("accuracy, %"))
def order(options):
    """Two layers of width 64: 3,000 steps of 64 sequences of 16 tokens on masked words alone,
    then 6,000 of 32 sequences of 64 tokens with each objective. SOP and NSP are answered by the
    model's own head on held-out text. "first tokens" is a classifier that sees the first token of
    each segment."""
    seeds = range(options.seeds)
    words = {("words", seed): [*SHORT, "--embedding", 48, "--objective", "none"] for seed in seeds}
    first = run_arms(options, words)
    arms = {}
    for seed in seeds:
        for objective in ("sop", "nsp"):
            arms[objective, seed] = [
                "--init", first["words", seed], "--objective", objective, "--steps", 6000,
                "--lr", 0.08, "--dev_examples", 4096, "--held_out", 0.2]
    folders = run_arms(options, arms)
    values = {"53%": [53.0] * options.seeds}
    for (objective, _), folder in folders.items():
        result = read(folder / "done.json")
        for task in ("NSP", "SOP"):
            accuracy = f"{task.lower()}_accuracy"
            score = 100 * (result[accuracy] or 0)  # None: no pairs in the held-out text
            values.setdefault(f"{objective} on {task}", []).append(score)
            if objective == "sop":
                baseline = 100 * result["baselines"][accuracy]
                values.setdefault(f"first tokens on {task}", []).append(baseline)
    return {"values": values}


def size(hidden, E, share):
    """Flags of a network of two layers; E = H needs no mapping."""
    return [*WORDS, "--hidden", hidden, "--heads", hidden // 32, "--ffn", 2 * hidden,
            "--embedding", E % hidden, "--share", share]


@study(
    "0.2 core-hours",
    Claim("dropout", "Taking dropout out helps", "90.4 with dropout, 90.7 without (Table 8)",
          [("no dropout", "dropout 0.1")]),
    picture=dots(PERCENT))
def dropout(options):
    """Two layers of width 64 that share all weights, E = 32, 3,000 steps of 64 sequences of 16
    tokens, masked words alone."""
    arms = {
        name: [*size(64, 32, "all"), "--dropout", rate]
        for name, rate in (("no dropout", 0), ("dropout 0.1", 0.1))
    }
    return word_accuracy(options, arms)


SHARES = {
    "not-shared": ("none", (87, 89, 93, 108)),  # millions for E = 64, 128, 256, 768
    "all-shared": ("all", (10, 12, 16, 31)),
    "shared-attention": ("attention", (None, 64, None, 83)),
    "shared-FFN": ("ffn", (None, 38, None, 57)),
}


def published():
    """{row: (Config, printed millions)} of Tables 1, 3, 4 and 12."""
    millions = {"base": 12, "large": 18, "xlarge": 60, "xxlarge": 235, "bert-base": 108,
                "bert-large": 334}
    rows = {name: (albert.PRESETS[name], number) for name, number in millions.items()}
    rows["H=4096, 3 layers"] = ({**albert.PRESETS["xxlarge"], "layers": 3}, 225)
    rows["H=6144, 3 layers"] = (dict(layers=3, hidden=6144, heads=96, ffn=24576), 499)
    for name, (share, numbers) in SHARES.items():
        for E, number in zip((64, 128, 256, 768), numbers):
            if number:
                rows[f"{name} E={E}"] = (dict(embedding=E, share=share), number)
    return {name: (albert.Config(**settings), number) for name, (settings, number) in rows.items()}


def countings(cfg):
    """Four ways to count parameters: A the encoder, B with its pooler, C with the heads too, D
    as B with position and segment tables and their LayerNorm of width H."""
    parts = albert.parts(cfg)
    pooled = sum(parts.values()) - parts["mlm"] - parts["order"]
    encoder = pooled - parts["pooler"]
    wide = (cfg.positions + 4) * (cfg.hidden - (cfg.embedding or cfg.hidden))
    return {"A": encoder, "B": pooled, "C": sum(parts.values()), "D": pooled + wide}


@study(
    "seconds",
    Claim("parameters", "ALBERT's configurations have a fraction of BERT's parameters",
          "base 12 M against 108 M, xxlarge 235 M, elsewhere 233 and 225 M (Tables 1, 3, 4, 12)"))
def parameters(options):
    """All rows of Tables 1, 3, 4 and 12. A row agrees if one of four ways to count rounds to the
    printed millions: encoder, with pooler, with heads, with wide position tables."""
    agree = []
    measured = {}
    rows = published()
    for name, (cfg, printed) in rows.items():
        counts = countings(cfg)
        away = min(abs(count / 1e6 - printed) for count in counts.values())
        if away <= 0.5:
            agree.append(name)
        else:
            label = f"{name}: {counts['B']:,} counted with the pooler, {printed} M printed"
            measured[label] = counted(0.5 - away)
    base = f"base {countings(rows['base'][0])['C']:,} with all heads"
    measured = {f"{len(agree)} of {len(rows)} rows agree; {base}": counted(len(agree)), **measured}
    return {"values": {"rows that agree": agree}, "intervals": {"parameters": measured}}


if __name__ == "__main__":
    main("albert", globals())
