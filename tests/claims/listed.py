"""Every claim of the four papers, in the order of their weight, for the pages tests/claims/PAPER.md.

A claim is judged by the first of its `results` (JSON files in results/PAPER) that is there and judges itself. While
there is none, `verdict` and `ours` say what the `older` ones show: runs of earlier commits, whose numbers the present
code may not give again. {Table 5: SOP, average} is a number of published.json: none of a paper's is typed here. Days
are those of study.days_of. 16 GB of text are 3.7 billion tokens (data/README.md), 30 million rows of 128.
"""
from typing import NamedTuple


class Claim(NamedTuple):
    name: str  # of its anchor on the page
    claim: str  # what the paper says
    where: str  # in the paper
    paper: str  # its numbers
    verdict: str  # one of study.VERDICTS and a few words
    ours: str = ""  # our numbers: mean ± deviation, n
    results: tuple = ()
    older: tuple = ()
    needs: str = ""  # what it would take to go on
    size: str = ""  # of the runs behind a result that judges itself: networks, data, seeds; what its columns mean


class Question(NamedTuple):
    text: str  # asked of a claim, and not run
    command: str
    hours: float  # of one core, estimated from runs like it


AUTOBERT_ZERO = (
    Claim("hybrid", "Networks of convolution and attention beat either alone", "Table 5",
          "mean of nine GLUE numbers (dev): AutoBERT-Zero {Table 5: AutoBERT-Zero, average}, attention alone "
          "{Table 5: Att-only, average}, BERT-base {Table 5: BERT-base, average}, convolution alone "
          "{Table 5: Conv-only, average}",
          "not run", results=("hybrid", "hybrid_real"),
          size="four layers of width 64, 2,000 updates of 32 rows of 64 tokens, two epochs on all rows of each task, "
          "demo data, n 3. CoLA: Matthews' correlation, the others: accuracy, as shares; the differences are those of "
          "the mean of four, in pairs. Hybrid: conv3 and BERT's attention in turn, twice. Published layers: two of "
          "the paper's six pairs (D14). Second table: real text and real tasks, 16 rows of 128 tokens, the rest alike. "
          "There masked words alone tell BERT and attention, which stay on the plateau, from the others; MRPC's pairs "
          "are learnt by none (one constant answer has 0.689), CoLA hardly; what convolution alone lacks is SST-2"),
    Claim("attention", "The attention in a searched network earns its place", "Sec. 4.2, Table 5",
          "the published network with its attentions replaced by convolutions: {Table 5: Conv-only, average} against "
          "{Table 5: AutoBERT-Zero, average}", "not run", results=("attention", "attention_demo"),
          size="the network that `torchrun autobert_zero.py --search` found, and itself with the convolution before "
          "each attention in its place; from scratch, n 3. First table: as in claim 1 (2,000 updates at a learning "
          "rate of 4e-3), where one of three winners does not leave the plateau; second: as the demo pre-trains "
          "(3,000 updates, 2e-3, smaller initial weights), where all do"),
    Claim("op-nas", "OP-NAS finds better networks than evolution and random search", "Figure 6", "curves, no numbers",
          "does not hold at this size: the winners of the three strategies are equal once each is trained alone",
          "best of 24 in the search 0.127 ± 0.036 (OP-NAS), 0.124 ± 0.033 (evolution), 0.114 ± 0.021 (random), n 5. "
          "Over evolution +0.0030 ± 0.0014 in pairs, over random +0.013 ± 0.008 (standard errors). The winners "
          "trained alone: 0.147, 0.147, 0.150 (± 0.015, n 4)", ("op_nas", "op_nas_demo", "search"), ("old-search",),
          size="four layers of width 64, demo data; a search: 24 candidates of 300 updates each (32 rows of 40 "
          "tokens), scored by CoLA, QNLI and RTE with inherited weights; then each winner from scratch, 1,500 updates, "
          "tuned on all rows, judged on dev rows that no search saw; n 4 searches a strategy, differences in pairs "
          "(the fourth was added when three had been seen, as many as the question had asked for). In two searches "
          "what fails is the score: the OP-NAS winners of seeds 0 and 2 have 0.735 and 0.616 in the search, on weights "
          "that 24 candidates have trained, and from scratch they are at chance (0.375). In the others it is what is "
          "proposed: in seed 3 none of OP-NAS's candidates leaves chance (best 0.359; random search's 0.688), in seed "
          "1 none of either search, so both return the same initial one. Second table: the same searches (its minutes "
          "count them again), the networks pre-trained as the demo does it, the remedy; one of the two winners that "
          "failed learns then (0.651), one does not, random search's are ahead still. How well the score orders "
          "networks: [fidelity](#fidelity)"),
    Claim("glue", "The published network beats BERT of its size", "Table 2",
          "GLUE dev {Table 2: AutoBERT-Zero, GLUE dev} against {Table 2: BERT-base, GLUE dev}. Started from the "
          "super-net {Table 2: AutoBERT-Zero*, GLUE dev}, and on test {Table 2: AutoBERT-Zero*, GLUE test}, more than "
          "RoBERTa-base ({Table 2: RoBERTa-base, GLUE test}) and BERT-large ({Table 2: BERT-large, GLUE test})",
          "holds in part: at six and at twelve layers of width 64 it is far ahead in masked words, and not on GLUE",
          "masked-word loss, 6 layers, n 3: 4.389 ± 0.027 against 5.511 ± 0.004, a difference of 1.12 nats [1.05, "
          "1.19]. 12 layers, n 3, in pairs: 1.53 nats [0.69, 2.38], and one seed of BERT did not train. SST-2 and "
          "MRPC: no difference beyond a deviation or two", older=("old-published-against-bert", "old-twelve-layers"),
          needs="40 passes over 16 GB of text, {days: autobert_zero | base | pre-training of autobert-zero, 160 rows "
          "of 128, 1 shard: 1.2e9} of an H100 for it and {days: autobert_zero | base | pre-training of bert, 160 rows "
          "of 128, 1 shard: 1.2e9} for BERT, then GLUE"),
    Claim("squad", "It beats BERT-base on SQuAD", "Table 3",
          "F1 {Table 3: AutoBERT-Zero, SQuAD1.1} against {Table 3: BERT-base, SQuAD1.1} (v1.1), "
          "{Table 3: AutoBERT-Zero, SQuAD2.0} against {Table 3: BERT-base, SQuAD2.0} (v2.0)",
          "holds in part: ahead in each seed, and far from answering",
          "v1.1, 800 questions to learn from: F1 0.090 ± 0.005 against 0.056 ± 0.010, n 3. Without pre-training 0.077 "
          "against 0.050, n 1", older=("old-published-against-bert",),
          needs="a pre-trained base network, then `--finetune squad --preset base`"),
    Claim("scaling", "The network found at base size wins at small and large size", "Table 4",
          "GLUE dev: small {Table 4: AutoBERT-Zero-small, GLUE dev} (BERT {Table 4: BERT-small, GLUE dev}), large "
          "{Table 4: AutoBERT-Zero-large, GLUE dev} (BERT {Table 4: BERT-large, GLUE dev})",
          "not run: only counted, in the next claim",
          needs="40 passes over 16 GB, {days: autobert_zero | large | pre-training of autobert-zero, 80 rows of 128, "
          "1 shard: 1.2e9} of an H100 for large"),
    Claim("counts", "It needs fewer parameters and FLOPs", "Tables 2 to 5",
          "{Table 2: AutoBERT-Zero, parameters}M and {Table 2: AutoBERT-Zero, FLOPs} FLOPs against "
          "{Table 2: BERT-base, parameters}M and {Table 2: BERT-base, FLOPs}", "not run", results=("counts",)),
    Claim("latency", "It is faster than BERT and takes less memory", "Table 7",
          "{Table 7: AutoBERT-Zero, latency} s and {Table 7: AutoBERT-Zero, memory} GB against "
          "{Table 7: BERT-base, latency} s and {Table 7: BERT-base, memory} GB, batches of 128 on a V100",
          "holds in part: 1.11 times as fast in one run, memory not measured",
          "a forward of 8 x 128 tokens 3.09 s against 3.44 s, in turns", ("latency",), ("old-latency",),
          needs="a GPU: `python -m tests.claims.autobert_zero latency --preset base --device cuda`, a minute"),
    Claim("uniformity", "Its tokens stay more different from each other", "Figure 5", "curves, no numbers",
          "holds in part: in every layer in the mean, by both measures, the last layer's clearly by one",
          "last of six layers, n 3: relative residual 0.84 ± 0.01 against 0.81 ± 0.00, 0.03 apart [0.005, 0.055], "
          "mean cosine 0.28 ± 0.02 against 0.33 ± 0.01, 0.05 apart [-0.01, 0.11]",
          ("uniformity",), ("old-uniformity",)),
    Claim("fidelity", "Scores with shared weights rank architectures as full training does", "Figure 8, App. B",
          "a picture of Kendall's correlations, no numbers",
          "holds in part: the tau of five architectures swings between 0.40 and 1.00",
          "Kendall's tau of the scores in the search with those alone after 120, 240 and 480 updates: 0.40, 1.00, "
          "0.60, five architectures of one search", ("fidelity",), ("old-weight-sharing",),
          size="16 of the 24 architectures of claim 3's OP-NAS search of seed 0, spread by score, each from scratch "
          "(1,500 updates of 32 rows of 40 tokens), CoLA, QNLI and RTE on dev rows that the search has not seen; 95% "
          "intervals by the bootstrap over architectures. The score tells networks that never learn from those that "
          "can: the seven lowest are at chance from scratch too. Of the nine above, three are at chance from scratch, "
          "the search's best among them"),
    Claim("sharing", "Shared weights save most of a candidate's training", "Sec. 3.2, 4.1",
          "{Sec. 3.2: evaluation cost saved by BIWS}% of a candidate's cost, so {Sec. 4.1: cost of the search} V100 "
          "hours in place of {Sec. 4.1: cost of evolution without BIWS}",
          "holds in part: about 80% once the super-net has learnt, nothing in the first rounds",
          "83, 80 and 76% of three later candidates, none of two early ones, one search",
          older=("old-weight-sharing",)),
    Claim("kernels", "Kernels go from wide to narrow, and blocks of convolution and attention win", "Sec. 4.2, Figure "
          "7",
          "without the descent {Table 2: AutoBERT-w/o-desc, GLUE dev}, three attentions in a row "
          "{Table 2: AutoBERT-att, GLUE dev}, three convolutions in a row {Table 2: AutoBERT-conv, GLUE dev}, the "
          "network found {Table 2: AutoBERT-Zero, GLUE dev}",
          "does not hold at this size: what short searches find has kernels of 3, 9, 31 and 5, 9, 9",
          "one search on real text, one on demo data, of minutes each", older=("old-real-search",),
          needs="the three rivals' layers, which the paper prints as pictures"),
)

AUTOTINYBERT = (
    Claim("shape", "Searched shapes beat the conventional rule's at every latency", "Figure 1, Table 1",
          "average with SQuAD, searched against rule: S1 {Table 1: AutoTinyBERT-S1, average} and "
          "{Table 1: BERT-S1, average}, S2 {Table 1: AutoTinyBERT-S2, average} and {Table 1: BERT-S2, average}, S3 "
          "{Table 1: AutoTinyBERT-S3, average} and {Table 1: BERT-S3, average}, S4 "
          "{Table 1: AutoTinyBERT-S4, average} and {Table 1: BERT-S4, average}",
          "does not hold at this size: no gain over the rule at its best depth that three seeds could show",
          "masked words at a limit of 4.6: searched 15.41 ± 0.33%, rule 15.36 ± 0.13%, +0.05 points [-0.46, +0.55], n "
          "3. Random shapes 14.4 ± 0.6%", ("shape", "shape_second", "pareto"), ("old-pareto",),
          size="real text, a SuperPLM of 4-96-384-6-96 with 4,000 updates of 32 rows of 48 tokens, each shape 500 more "
          "from there, n 5, in pairs. The loss is of masked words, in nats (36,681 of them), ms of one row of 128 "
          "tokens, of encoder and pooler unless it says otherwise. Second table: a SuperPLM and a search of another "
          "seed, n 3; latencies were measured anew, two fifths lower: on another day, perhaps another machine"),
    Claim("speedups", "The published shapes are as many times as fast as BERT-base", "Tables 1, 4, F.1",
          "the column published, and what another table prints", "not run", results=("latency",),
          size="networks without training, one row of 128 tokens, medians of five rounds in which all take turns. KD: "
          "for distillation; PF: BERTs that Turc et al. released; S5: of the paper's Table 5"),
    Claim("ranking", "Identical layers, sub-matrix extraction and Algorithm 1 make one-shot scores rank right",
          "Table 3, Figure 4",
          "pairwise accuracy {Table 3: HAT, pairwise accuracy}% (HAT), {Table 3: ILS, pairwise accuracy}, "
          "{Table 3: ILS + SME, pairwise accuracy}, {Table 3: ILS + SME + EBL, pairwise accuracy}% (all). SQuAD's F1 "
          "in one shot {Table 3: ILS + SME + EBL, SQuAD} (HAT {Table 3: HAT, SQuAD}), trained alone "
          "{Table 3: stand-alone, SQuAD}",
          "holds in part: Algorithm 1 ranks best, by less than one seed can tell from identical layers alone",
          "pairwise accuracy 80.0% (HAT), 91.7 (identical layers), 89.2 (and sub-matrices), 92.1 (all), 16 "
          "architectures, n 1", ("ranking",), ("old-ranking",),
          size="real text, 16 architectures (depths 1 to 4, widths 8 to 64), a SuperPLM of 1,000 updates a variant and "
          "seed, each architecture alone 600 updates, scores of masked words in percent of a guesser's loss saved, n "
          "3, in pairs. Nothing is left to tell apart: two seeds of the truth order 91% of the pairs alike (tau 0.82), "
          "and so well does each variant, HAT's layers of their own too. Algorithm 1 has the highest scores"),
    Claim("distillation", "Searched shapes win under distillation too", "Table 2",
          "average, searched against rule: S1 {Table 2: AutoTinyBERT-KD-S1, average} and "
          "{Table 2: BERT-KD-S1, average}, S2 {Table 2: AutoTinyBERT-KD-S2, average} and "
          "{Table 2: BERT-KD-S2, average}, S3 {Table 2: AutoTinyBERT-KD-S3, average} and "
          "{Table 2: BERT-KD-S3, average}, S4 {Table 2: AutoTinyBERT-KD-S4, average} and "
          "{Table 2: BERT-KD-S4, average}. On test {Table 2: AutoTinyBERT-KD-S1, test average}, as MobileBERT "
          "({Table 2: MobileBERT-tiny, test average}) and above MiniLM ({Table 2: MiniLM-4L516D, test average})",
          "not run: a small teacher gives no gain to compare shapes by",
          "one shape, n 3: SST-2 70.0 ± 0.5% distilled and 71.4 ± 1.3% trained by masked words, MRPC 69.6 and 69.3%",
          older=("old-distilled",),
          needs="`python autotinybert.py --search --preset base --setting distill --teacher "
          "path/to/electra-base-discriminator` and as much for the rule's shapes"),
    Claim("predictor", "Latency is predicted from measurements of other architectures", "Sec. 3.5",
          "a feed-forward network, no error given", "not run", results=("predictor",),
          size="401 architectures of the paper's space, the least of three times for a row of 128 tokens, four fifths "
          "to learn from, n 1. MAPE: mean error in percent; linear: least squares, the file's; mlp: the paper's kind. "
          "The last row: two times of the same one"),
    Claim("convergence", "Starting from the SuperPLM saves half of the training", "Figure 5",
          "{Figure 5: training time saved}% saved", "holds: 90 to 95% saved",
          "the held-out loss of 700 updates from scratch is reached after 35, 70 and 35, n 3. The SuperPLM's own "
          "training, which serves all shapes, is not counted", ("convergence",), ("old-convergence",)),
    Claim("fast", "A rule read off the winners replaces the search", "Table 5, Sec. 4.4",
          "average {Table 5: AutoTinyBERT-Fast-S5, average} (Fast), {Table 5: AutoTinyBERT-S5, average} (search), "
          "{Table 5: BERT-S5, average} (BERT-S5), for {Table 5: AutoTinyBERT-Fast-S5, search} + "
          "{Table 5: AutoTinyBERT-Fast-S5, training}, {Table 5: AutoTinyBERT-S5, search} + "
          "{Table 5: AutoTinyBERT-S5, training} and {Table 5: BERT-S5, training} V100 hours",
          "holds in part: near the search at a sixteenth of its candidates, but a noisy measurement can refuse them "
          "all",
          "best one-shot score 14.8, 14.8, 14.4% (Fast, 4 candidates) and 14.9, 14.8, 14.6% (search, 64), seeds 0 to 2",
          older=("old-fast",)),
    Claim("rule", "The winners follow a rule of their own", "Table 4, Sec. 4.4",
          "d^f is {Sec. 4.4: least d^f} to {Sec. 4.4: largest d^f} times d^m, d^q {Sec. 4.4: least d^q} to "
          "{Sec. 4.4: largest d^q} times",
          "does not hold at this size: four shapes that small searches found have d^f of 0.4 to 2.8 times d^m",
          "1-64-180-4-32, 3-60-28-1-8, 2-64-28-2-16 (real text), 1-80-104-6-96 (demo). Of the paper's own winners S2 "
          "(4-396-624-6-384) has 1.58"),
    Claim("space", "The search space has so many architectures", "App. B",
          "{App. B: search space, pre-training} M for pre-training, {App. B: search space, distillation} M for "
          "distillation", "not run", results=("space",)),
    Claim("others", "It beats other searches and small BERTs", "Table 1",
          "GLUE {Table 1: AutoTinyBERT-S2, GLUE} at {Table 4: AutoTinyBERT-S2, speed-up} times BERT-base's speed, "
          "NAS-BERT {Table 1: NAS-BERT10, GLUE} at {Table 1: NAS-BERT10, speed-up}. Average {Table 1: "
          "AutoTinyBERT-S1, average} (S1), of the released four-layer BERT of its speed {Table 1: PF-4L512, average}",
          "not run: needs a SuperPLM of the paper's size",
          needs="five passes over 16 GB for the SuperPLM, {days: autotinybert | base | SuperPLM, sub-batches of 16 "
          "rows of 128, 2 shards: 1.5e8} of an H100, and for each winner no more than {days: autotinybert | base | "
          "further training, sub-batches of 16 rows of 128, 2 shards: 1.5e8}"),
)


WORDS_ALONE = ("two layers of width 64 that share everything, E = 32, 3,000 updates of 64 rows of 16 tokens, words "
               "alone, demo text, percent of 21,176 masked words, differences in points, n 3, in pairs")
ALBERT = (
    Claim("order", "Sentence order is the better second task: NSP's model cannot do it, its own model can do NSP",
          "Table 5",
          "accuracy in NSP and SOP, and average of the tasks: none {Table 5: None, NSP}, {Table 5: None, SOP} and "
          "{Table 5: None, average}, NSP {Table 5: NSP, NSP}, {Table 5: NSP, SOP} and {Table 5: NSP, average}, SOP "
          "{Table 5: SOP, NSP}, {Table 5: SOP, SOP} and {Table 5: SOP, average}",
          "holds in part: order is learnt, to chance with shuffled labels, but NSP's model does it above chance too",
          "800 updates from one NSP model, n 3: SOP trained 63.2 ± 0.1% in SOP and 57.0 ± 2.9% in NSP, NSP trained "
          "57.3 ± 1.2 and 62.9 ± 0.5, shuffled 50.2 ± 0.1. The difference of SOP in SOP is 5.9 points [2.9, 8.9]",
          ("order", "order-many"), ("old-order",),
          size="two layers of width 64, 3,000 updates of 64 rows of 16 tokens on words alone, then 3,000 of 32 rows "
          "of 64 with each objective, demo text (documents of four sentences), n 3, in pairs. Percent of about 25,000 "
          "masked words and 1,850 pairs. NSP, SOP: by a logistic regression on [CLS] of the frozen model; own head: "
          "by the one that was trained. Shuffled: SOP with random labels. The second table is of novels (200 "
          "sentences a document and more), where a pilot had seen no order learnt: a null was expected"),
    Claim("embedding", "A small E is enough where layers are shared", "Table 3",
          "average for E of 64, 128, 256, 768, shared: {Table 3: all-shared E=64, average}, "
          "{Table 3: all-shared E=128, average}, {Table 3: all-shared E=256, average}, "
          "{Table 3: all-shared E=768, average}. Not shared: {Table 3: not-shared E=64, average} to "
          "{Table 3: not-shared E=768, average}",
          "does not hold at this size: masked words gain from every step of E up to H",
          "shared, E of 4, 8, 16, 48 at H = 48: 6.1 ± 0.4, 8.4 ± 0.2, 11.3 ± 0.1, 13.5 ± 0.1%, n 3", ("sharing",),
          ("old-sharing",),
          size="two layers of width H = 64, 3,000 updates of 64 rows of 16 tokens, masked words alone, demo text, n "
          "3, in pairs. Percent of 21,176 masked words, differences in points. With E = 16 the seeds of "
          "one network are up to 5 points apart: hence the wide intervals"),
    Claim("sharing", "Sharing costs little, and most of that by the feed-forward part", "Table 4",
          "average at E = 768 and 128: nothing shared {Table 4: not-shared E=768, average} and "
          "{Table 4: not-shared E=128, average}, attention {Table 4: shared-attention E=768, average} and "
          "{Table 4: shared-attention E=128, average}, feed-forward {Table 4: shared-FFN E=768, average} and "
          "{Table 4: shared-FFN E=128, average}, all {Table 4: all-shared E=768, average} and "
          "{Table 4: all-shared E=128, average}",
          "holds in part: it costs next to nothing, and the feed-forward part is not what costs",
          "E = 48 (E = H): nothing shared 13.7 ± 0.1, attention 13.9 ± 0.1, feed-forward 14.0 ± 0.1, all 13.5 ± 0.1%. "
          "E = 8: 8.4 ± 0.1, 8.3 ± 0.2, 8.9 ± 0.3, 8.4 ± 0.2%, n 3", ("sharing",), ("old-sharing",)),
    Claim("parameters", "ALBERT's configurations have a fraction of BERT's parameters", "Tables 1, 3, 4, 12",
          "{Table 1: ALBERT base, parameters} M for base in place of {Table 1: BERT base, parameters} M, and so on, "
          "in the column paper", "not run", results=("parameters",),
          size="counted four ways: A encoder, B and its pooler, C and both heads, D as B with positions and segments "
          "H wide"),
    Claim("speed", "ALBERT trains faster than BERT of its shape", "Table 2",
          "speed over BERT large: base {Table 2: ALBERT base, speed-up} (BERT base {Table 2: BERT base, speed-up}), "
          "large {Table 2: ALBERT large, speed-up}, xlarge {Table 2: ALBERT xlarge, speed-up}, xxlarge "
          "{Table 2: ALBERT xxlarge, speed-up}, on many TPUs",
          "holds in part: base trains 1.43 times as fast as BERT base; over BERT large, products of matrices explain "
          "no more than 40 to 70% of the published ratios",
          "base against BERT base, 2 x 128 tokens: 1.43 (1.33 to 1.60 of 8 turns; the paper's two numbers give "
          "{Table 2: ALBERT base, speed-up over BERT base, 5.6 / 4.7}, FLOPs 1.22): LAMB updates 11.8 M parameters in "
          "place of 109.7 M", ("speed", "flops"),
          needs="many cards for the exchange that sharing saves: `torchrun` with `--preset large`, minutes a row"),
    Claim("xxlarge", "xxlarge beats BERT large with fewer parameters", "Table 2",
          "average {Table 2: ALBERT xxlarge, average} against {Table 2: BERT large, average}. At base size BERT is "
          "ahead: {Table 2: ALBERT base, average} against {Table 2: BERT base, average}",
          "not run", needs="125,000 updates of 4,096 rows, {days: albert | xxlarge | pre-training, 32 rows of 512, 2 "
          "shards: 512e6} of an H100 for xxlarge, {days: albert | base | pre-training, 64 rows of 512, 2 shards: "
          "512e6} for base"),
    Claim("time", "It wins at equal training time too", "Table 6",
          "average {Table 6: ALBERT-xxlarge, average} against {Table 6: BERT-large, average}",
          "does not hold at this size: at a minute of training the network with twice the updates wins",
          "masked words, n 3: ALBERT of H = 96 13.3 ± 0.2%, BERT of H = 48 in as many CPU seconds 14.8 ± 0.1%",
          ("equal_time",), ("old-equal-time",),
          size=f"{WORDS_ALONE}; ALBERT of H = 128 with E = 32 against BERT of H = 64 that shares nothing and maps no "
          "embedding, at the time of 1,000, 2,000 and 4,000 of BERT's updates (an update takes 2.15 times as long, in "
          "turns). At this learning rate H = 128 hardly leaves the plateau in so few updates"),
    Claim("depth", "Depth helps a shared stack, with less and less to gain", "Tables 11, 13",
          "average for 1, 3, 6, 12, 24, 48 layers: {Table 11: 1, 3, 6, 12, 24, 48 layers, average}. xxlarge of 12 and "
          "24 layers: {Table 13: 12 and 24 layers, average}",
          "does not hold at this size: 1, 2 and 4 layers are equal after 1,000 updates",
          "11.3 ± 0.1, 11.3 ± 0.1, 11.1 ± 0.1%, n 3. A warm start from the shallower model gains what as many updates "
          "without it gain (13.6 ± 0.2 and 13.5 ± 0.3)", ("depth",), ("old-depth",),
          size=f"{WORDS_ALONE}, but for the depth, half the learning rate and three times the warm-up. One of three "
          "seeds of eight layers stays on the plateau; at the full rate all three do, and two of four layers"),
    Claim("groups", "Smaller groups of shared layers do better", "Sec. 4.5", "no numbers",
          "does not hold at this size: no difference beyond a deviation",
          "4 layers in 1, 2, 4 groups: 11.1 ± 0.1, 11.0 ± 0.3, 11.3 ± 0.5%, n 3", ("groups",), ("old-depth",),
          size=f"{WORDS_ALONE}, but for four layers, half the learning rate and three times the warm-up"),
    Claim("dropout", "Taking dropout out helps", "Table 8, Figure 2",
          "average {Table 8: with dropout, average} with it, {Table 8: without dropout, average} without",
          "holds: in masked words, by half a point",
          "dropout 0.1: 10.7 ± 0.1%, none 11.3 ± 0.1%, in pairs 0.53 points [0.25, 0.82], taken out half-way "
          "10.9 ± 0.1%, n 3", ("dropout",), ("old-depth",),
          size=f"{WORDS_ALONE}. No dropout is the demo's own setting"),
    Claim("width", "Width helps, up to a point", "Table 12",
          "average for H of 1024, 2048, 4096, 6144: {Table 12: H of 1024, 2048, 4096, 6144, average}", "not run",
          results=("width",), size=f"{WORDS_ALONE}, but for the width (feed-forward 2 H, heads of 32), "
          "half the learning rate and three times the warm-up"),
    Claim("layers", "Layers change their input smoothly, and never stop", "Figure 1",
          "{Figure 1: layers of BERT-large and ALBERT-large} layers, curves, no numbers", "not run",
          results=("smoothness", "layers"),
          size=f"{WORDS_ALONE}, but for eight layers, half the learning rate and three times the warm-up; the angle "
          "between input and output of each, mean of three seeds (of random weights: one draw); roughness: how far "
          "angles are from the middle of their neighbours. One of three shared networks stays on the plateau (7.3% of "
          "the words), and its layers stop turning their input (0.0 degrees from the fourth on). The two that learn "
          "are smoother than their unshared twins (0.05 and 0.04 against 0.10 both), and their last layers turn by 10 "
          "and 13 degrees",
          needs="`python -m tests.claims.albert layers --init path/to/albert-large`, a minute"),
    Claim("data", "More text helps, but for SQuAD", "Table 7, Figure 2",
          "average {Table 7: with additional data, average} against {Table 7: no additional data, average}", "not run",
          needs="two trainings of base, {days: albert | base | pre-training, 64 rows of 512, 2 shards: 512e6} of an "
          "H100 each"),
    Claim("best", "State of the art on GLUE, SQuAD and RACE", "Tables 9, 10",
          "GLUE {Table 9: ALBERT, GLUE test}, SQuAD2.0 {Table 10: ALBERT, SQuAD2.0 test F1} (F1), RACE "
          "{Table 10: ALBERT, RACE test} of ensembles, {Table 10: ALBERT 1.5M, RACE test} of one model",
          "not run: the released weights are read, and give `transformers`' logits to 5e-7",
          needs="`python albert.py --finetune paper --preset xxlarge --init path/to/albert-xxlarge-v2` with the "
          "official data: a card of 40 GB (RACE with `--accumulate 8`)"),
)

MFORMER = (
    Claim("mixed", "Mixed attention keeps softmax's accuracy at a lower cost", "Table 5, Figure 1",
          "CIFAR-10: mFormer {Table 5: CIFAR-10, mFormer}% with {Table 5: CIFAR-10, mformer, FLOPS} G, Transformer* "
          "{Table 5: CIFAR-10, Transformer*}% with {Table 5: CIFAR-10, transformer*, FLOPS} G, cosFormer* "
          "{Table 5: CIFAR-10, cosFormer*}% with {Table 5: CIFAR-10, cosformer*, FLOPS} G",
          "holds in part: no loss in accuracy with 15% fewer FLOPs, but no time is saved at 65 tokens",
          "CIFAR-10 (10,000 pictures), n 3: mixed 46.9 ± 0.4%, softmax 46.9 ± 1.2%, linear 43.0 ± 0.4%. Mixed less "
          "softmax is 0.0 points [-2.8, +2.7]. One search seed each", ("mixed", "pareto"), ("old-pictures",),
          size="CIFAR-10, 10,000 pictures to train on and 2,000 to score, patches of 2: 257 tokens. Three searches of "
          "one seed (100 samples, limit 0.09 GFLOPs); each network found from scratch, 800 updates of 16 pictures "
          "(1.3 passes: the start of a training), n 3, differences in pairs. ms: a picture on one core, in turns. "
          "Rows of one architecture are one network: the mixed search found softmax alone, the best of its own random "
          "samples"),
    Claim("translation", "It translates like the softmax network with fewer parameters", "Table 3, Table 5",
          "BLEU {Table 5: WMT'14, mFormer} with {Table 5: WMT'14, mformer, parameters} M parameters, Transformer* "
          "{Table 5: WMT'14, Transformer*} with {Table 5: WMT'14, transformer*, parameters} M",
          "holds in part: equal BLEU, but the search took softmax in all encoder layers",
          "Multi30k, n 3: mixed 24.59 ± 0.57, softmax 24.26 ± 0.40 BLEU, in pairs +0.34 [-1.0, +1.7], with 2% fewer "
          "parameters", older=("old-translation",)),
    Claim("linear", "Linear attention alone loses accuracy, and collapses in translation", "Table 5, Sec. 4.2.2",
          "BLEU {Table 5: WMT'14, cosFormer*, BLEU} and, of mFormer made linear, "
          "{Table 5: WMT'14, mFormer (all linear)}. CIFAR-10 {Table 5: CIFAR-10, cosFormer*}% and "
          "{Table 5: CIFAR-10, mFormer (all linear)}%",
          "holds in part: it costs accuracy, and nothing collapses: lengths are fixed here (D1)",
          "Multi30k, n 3: linear everywhere 20.95 ± 0.17 BLEU, 3.3 [2.1, 4.5] below softmax in pairs. CIFAR-10 43.0 ± "
          "0.4 against 46.9 ± 1.2%", older=("old-translation", "old-pictures")),
    Claim("types", "Exchanging the types of one network tells what each is worth", "Table 5, Sec. 4.5",
          "mFormer {Table 5: WMT'14, mFormer} BLEU, all softmax {Table 5: WMT'14, mFormer (all Softmax)}, all linear "
          "{Table 5: WMT'14, mFormer (all linear)}. CIFAR-10 {Table 5: CIFAR-10, mFormer}, "
          "{Table 5: CIFAR-10, mFormer (all Softmax)}, {Table 5: CIFAR-10, mFormer (all linear)}%. Transformer* made "
          "linear {Table 5: WMT'14, Transformer* (all linear)} BLEU, {Table 5: CIFAR-10, Transformer* (all linear)}%, "
          "cosFormer* made softmax {Table 5: CIFAR-10, cosFormer* (all Softmax)}%",
          "holds in part: in the same order, with gaps of one BLEU and one or two points",
          "Multi30k, n 3: softmax 24.27 ± 0.20, one linear layer of three 24.38 ± 0.05, all linear 23.21 ± 0.33 BLEU. "
          "CIFAR-10, n 3: 46.0 ± 0.8, mixed 46.9 ± 0.4, 44.6 ± 0.4%", ("types",), ("old-types",)),
    Claim("length", "Linear attention grows linearly with the length, softmax with its square", "Sec. 1, Figure 3",
          "no numbers", "not run", results=("length", "networks"),
          size="one attention of eight heads of 64, one row, medians of 5 to 80 turns. Kept: for the backward pass; "
          "peak: of a GPU. Relative: with the paper's relative positions; causal: of a decoder. Second table: whole "
          "networks of four layers of width 64, forward, one picture, medians of 40 turns and their 95% intervals; a "
          "mix has one softmax layer and three linear ones, and stands beside softmax of its own kind"),
    Claim("decoder", "Linear attention in the decoder breaks a translator", "Sec. 8",
          "{Sec. 8: linear attention in the decoder} BLEU in all three cases",
          "does not hold: with a fixed length for the cosine (D1) causal and cross linear attention train too",
          "Multi30k, 500 updates, n 1: none 9.65, self 11.04, cross 7.99, both 8.13 BLEU", ("decoder",),
          ("old-decoder",)),
    Claim("rankers", "Two rankers order architectures, and pruning the space helps", "Sec. 3.1.2",
          "no numbers; the fastest and slowest {Sec. 3.1.2: fastest and slowest discarded} of the samples are left out",
          "holds in part: rankers order, pruning brought nothing at equal cost",
          "Kendall's tau on unseen sub-nets, 96 or 80 to learn from: loss 0.64 ± 0.08 (pictures), 0.30 ± 0.33 "
          "(translation). Best loss pruned and whole: 1.749 and 1.749, 2.964 and 2.965, n 3", ("ranker",),
          ("old-ranker",),
          size="CIFAR-10, 65 tokens, one super-net of 600 updates, 500 of its sub-nets, judged by loss on 500 held-out "
          "pictures and by FLOPs; tau and pair accuracy of rankers fitted to so many of them, on those that they have "
          "not seen (five parts, mean and deviation). Below, the best of five finalists and their mean, three seeds, "
          "in the pruned space (84 architectures) and in the whole one: equal samples, equal evolution"),
    Claim("importance", "Attention types rule accuracy on images, the number of layers rules efficiency", "Sec. 7",
          "accuracy: the decoder's layers first (translation), attention type first (images). Efficiency: the "
          "decoder's layers, the encoder's layers",
          "holds in part: efficiency as in the paper; for accuracy the type is second, behind the width",
          "images: width 0.16, type 0.11, layers 0.10 of pair accuracy. Translation: width 0.15, decoder layers 0.05, "
          "n 1",
          ("importance",), ("old-importance",),
          size="images: CIFAR-10 at 65 tokens, the 500 sub-nets of the claim before this one, efficiency in FLOPs; how "
          "much pair accuracy a ranker loses where a feature is shuffled, the mean of five rankers"),
    Claim("structure", "cosFormer* wants shallower and thinner networks than Transformer*", "Tables 3, 4, Figures 5, 6",
          "layers of Transformer*, cosFormer*, mFormer: "
          "{Table 3: Transformer*, cosFormer*, mFormer: decoder layers} in the decoder (translation), "
          "{Table 4: Transformer*, cosFormer*, mFormer: layers} (images)",
          "holds in part: on images the linear search takes two layers, the softmax search four; in translation it "
          "takes more parameters, not fewer",
          "one search seed: 134,906, 251,162 parameters (images), 453,696, 430,288 (translation)", ("shape",)),
    Claim("counts", "Parameters and FLOPs of the networks", "Tables 3, 4, 5",
          "mFormer {Table 5: CIFAR-10, mformer, parameters} M and {Table 5: CIFAR-10, mformer, FLOPS} G, all softmax "
          "{Table 5: CIFAR-10, mformer-softmax, FLOPS} G",
          "holds in part: all nine rows of CIFAR-10 come out by the paper's counting, which does not see linear "
          "attention's products (the column honest has them); with them mFormer saves 1.8% over its twin of softmax "
          "alone, not 3.2%",
          "translation: parameters come out, FLOPs 3 to 5% below the printed ones", ("counts",), ("old-counts",)),
    Claim("vanilla", "Searched networks beat the hand-made ones", "Table 5",
          "CIFAR-10: cosFormer* {Table 5: CIFAR-10, cosFormer*} against {Table 5: CIFAR-10, Vanilla cosFormer}%, "
          "Transformer* {Table 5: CIFAR-10, Transformer*} against {Table 5: CIFAR-10, Vanilla Transformer}%. "
          "Translation: {Table 5: WMT'14, Transformer*} against {Table 5: WMT'14, Vanilla Transformer} BLEU", "not run",
          needs="four trainings of 140,000 updates of 64 pictures, {days: mformer | base cifar10 | training, 64 "
          "pictures, 2 shards: 8.96e6} of an H100 each by products of matrices alone, more by their launches"),
)

CLAIMS = {"autobert_zero": AUTOBERT_ZERO, "autotinybert": AUTOTINYBERT, "albert": ALBERT, "mformer": MFORMER}

OP_NAS = "python -m tests.claims.autobert_zero op_nas --against "
ASKED = {
    "autobert_zero": (
        Question("OP-NAS against plain evolution, equal budgets, winners trained alone", f"{OP_NAS}evolution", 1.5),
        Question("Against itself without shared weights, equal updates a candidate", f"{OP_NAS}no-sharing", 1.5),
        Question("Against itself with the mean of a round's weights written back (D10)", f"{OP_NAS}averaging", 1.5),
        Question("Against itself with Eq. 3 of scores in 0..1 (D9)", f"{OP_NAS}eq-3", 1.5),
        Question("Against itself without rewiring (D7)", f"{OP_NAS}no-rewiring", 1.5),
        Question("BERT with four times the updates on real text (claim 1's second table leaves it out)",
                 "python autobert_zero.py --pretrain --arch bert --steps 8000 --init_std 0.1 --lr 4e-3 "
                 "--vocab_size 4000 --length 128 --batch 16 --corpus path/to/corpus", 0.6),
        Question("A search scored by SST-2", "python autobert_zero.py --search --tasks SST-2 --glue path/to/glue "
                 "--corpus path/to/corpus", 0.3),
        Question("Masked words alone as the score: a pilot of an earlier commit saw the number of convolutions rule it",
                 "python autobert_zero.py --search --tasks MLM", 0.2)),
    "autotinybert": (
        Question("A third SuperPLM", "python -m tests.claims.autotinybert shape_second --seed 7 --corpus "
                 "path/to/corpus --runs runs/claims/autotinybert/third --results path/to/results", 0.9),
        Question("Searched shapes against random ones in the last tenth of the limit, and the rule's, further trained",
                 "python -m tests.claims.autotinybert pareto --tasks MLM --largest 4-96-384-6-96 --reference "
                 "4-96-384-6-96 --length 48 --vocab_size 4000 --steps 4000 --further_steps 500 --corpus path/to/corpus "
                 "--limits 1.8,4", 1.5),
        Question("Sec. 4.4's rule in place of the search",
                 "python autotinybert.py --search --strategy fast --tasks MLM --largest 4-96-384-6-96 --reference "
                 "4-96-384-6-96 --length 48 --vocab_size 4000 --steps 4000 --further_steps 500 --corpus "
                 "path/to/corpus", 0.5),
        Question("Distillation by a teacher trained ten times as long as its students (trained here first)",
                 "python autotinybert.py --further_train --setting distill --teacher runs/super --arch 3-48-192-8-48 "
                 "--corpus path/to/corpus", 2.5),
        Question("The best shape of a grid within the limit, each trained alone (one of some thirty)",
                 "python autotinybert.py --further_train --arch 2-64-256-4-64 --further_steps 4500 --vocab_size 4000 "
                 "--length 48 --corpus path/to/corpus", 3)),
    "albert": (
        Question("What E and sharing cost in sentence order, and then in CoLA and QNLI, for each of `sharing`'s runs",
                 "python albert.py --pretrain --init runs/16 --objective sop", 4),),
    "mformer": (
        Question("Other seeds of the three searches, and ten times the updates", "python -m tests.claims.mformer mixed "
                 "--seeds 6 --steps 8000 --cifar10 path/to/cifar-10-batches-bin", 18),
        Question("Translation of eight sentences joined to a line (200 to 300 tokens), BLEU and time; `paste -d ' ' "
                 "- - - - - - - -` joins them",
                 "python -m tests.claims.mformer types --task wmt14 --preset small "
                 "--arch mformer --train_text path/to/train --test_text path/to/test", 3)),
}
