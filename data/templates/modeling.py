# The file modeling.py of a folder that `python autobert_zero.py --export FOLDER` writes. It is read
# as text and never imported. These lines are dropped.
"""A network for transformers:

    model = AutoModel.from_pretrained(FOLDER, trust_remote_code=True)

A network with the head of a classification also opens with AutoModelForSequenceClassification.
"""
import torch
import torch.nn.functional as F
from transformers import PretrainedConfig, PreTrainedModel
from transformers.modeling_outputs import BaseModelOutput, SequenceClassifierOutput

from .network import make_network


class NetworkConfig(PretrainedConfig):
    model_type = "autobert_zero"


class NetworkModel(PreTrainedModel):
    config_class = NetworkConfig

    def __init__(self, config):
        super().__init__(config)
        self.network = make_network()
        self.post_init()

    def batch_of(self, input_ids, attention_mask=None, token_type_ids=None, **others):
        """The batch of the network. Ids: (B, T). attention_mask: 1 at real tokens, which come
        first."""
        if token_type_ids is None:
            token_type_ids = torch.zeros_like(input_ids)
        lengths = None
        if attention_mask is not None:
            lengths = attention_mask.sum(-1)
            if (attention_mask.diff(dim=-1) > 0).any():
                raise ValueError("attention_mask: zeros precede ones, and this network has "
                                 "its padding on the right; set tokenizer.padding_side='right'")
        return {"ids": input_ids, "token_type_ids": token_type_ids, "lengths": lengths}

    def forward(self, input_ids, **others):
        """last_hidden_state: (B, T, H). self.network has the heads that the network was trained
        with."""
        states = self.network.encoder(**self.batch_of(input_ids, **others))
        return BaseModelOutput(last_hidden_state=states)


class NetworkForSequenceClassification(NetworkModel):
    def forward(self, input_ids, labels=None, **others):
        """logits: (B, outputs). labels: (B,), classes, or numbers if there is one output."""
        logits = self.network(self.batch_of(input_ids, **others))
        loss = None
        if labels is not None and logits.shape[-1] == 1:
            loss = F.mse_loss(logits.squeeze(-1), labels.to(logits.dtype))
        elif labels is not None:
            loss = F.cross_entropy(logits, labels)
        return SequenceClassifierOutput(loss=loss, logits=logits)
