# The file modeling_autotinybert.py of a folder that `python autotinybert.py --export FOLDER`
# writes. It is read as text and never imported. These lines are dropped.
"""BERT whose query, key and value have a width of their own, `qkv_size`, as in
AutoTinyBERT (Figure B.1): what AutoModel.from_pretrained(FOLDER, trust_remote_code=True) runs."""
from torch import nn
from transformers import (
    BertConfig, BertForMaskedLM, BertForQuestionAnswering, BertForSequenceClassification, BertModel)


class AutoTinyBertConfig(BertConfig):
    model_type = "autotinybert"


class OwnWidth:
    """Gives the attention of a BERT, which is built with one head, the heads and the width of its
    config."""
    config_class = AutoTinyBertConfig

    def __init__(self, config, *args, **more):
        heads = config.num_attention_heads
        width = config.qkv_size
        config.num_attention_heads = 1  # those of a BERT divide the hidden size
        super().__init__(config, *args, **more)
        config.num_attention_heads = heads
        for layer in self.base_model.encoder.layer:
            attention = layer.attention.self
            attention.num_attention_heads = heads
            attention.attention_head_size = width // heads
            attention.all_head_size = width
            attention.scaling = (width // heads) ** -0.5
            for name in ("query", "key", "value"):
                setattr(attention, name, nn.Linear(config.hidden_size, width))
            layer.attention.output.dense = nn.Linear(width, config.hidden_size)
        self.post_init()


class AutoTinyBertModel(OwnWidth, BertModel):
    pass


class AutoTinyBertForMaskedLM(OwnWidth, BertForMaskedLM):
    pass


class AutoTinyBertForSequenceClassification(OwnWidth, BertForSequenceClassification):
    pass


class AutoTinyBertForQuestionAnswering(OwnWidth, BertForQuestionAnswering):
    pass
