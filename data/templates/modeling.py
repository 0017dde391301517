# The file modeling.py of a folder that `python autobert_zero.py --export FOLDER` writes. It is read
# as text and never imported. These lines are dropped.
"""A network for transformers:

    model = AutoModel.from_pretrained(FOLDER, trust_remote_code=True)

A network with the head of a classification also opens with AutoModelForSequenceClassification.
"""
from types import SimpleNamespace

import torch
import torch.nn.functional as F
from torch import nn
from transformers import PretrainedConfig, PreTrainedModel
from transformers.modeling_outputs import BaseModelOutput, SequenceClassifierOutput

from .network import CONFIG, make_network


class NetworkConfig(PretrainedConfig):
    model_type = "autobert_zero"


class NetworkModel(PreTrainedModel):
    config_class = NetworkConfig

    def __init__(self, config):
        super().__init__(config)
        sizes = SimpleNamespace(**{**vars(CONFIG), "vocab_size": config.vocab_size})
        self.network = make_network(sizes, config.num_labels)
        self.post_init()

    def get_input_embeddings(self):
        return self.network.encoder.token_embedding

    def set_input_embeddings(self, value):
        self.network.encoder.token_embedding = value
        bias = getattr(self.network, "bias", None)  # of the head for masked words
        if bias is not None:
            more = value.num_embeddings - len(bias)
            self.network.bias = nn.Parameter(F.pad(bias.data, (0, more)))

    def run(self, function, input_ids, attention_mask, token_type_ids, output_attentions,
            output_hidden_states):
        """The result of function(batch), and the hidden states (B, T, H) of the embeddings and each
        layer, or None. Ids: (B, T). attention_mask: 1 at real tokens, which come first."""
        if output_attentions:
            raise ValueError("output_attentions: this network returns no attentions")
        if token_type_ids is None:
            token_type_ids = torch.zeros_like(input_ids)
        lengths = None
        if attention_mask is not None:
            lengths = attention_mask.sum(-1)
            if (attention_mask.diff(dim=-1) > 0).any():
                raise ValueError("attention_mask: zeros precede ones, and this network has "
                                 "its padding on the right; set tokenizer.padding_side='right'")
        batch = {"ids": input_ids, "token_type_ids": token_type_ids, "lengths": lengths}
        if output_hidden_states is None:
            output_hidden_states = self.config.output_hidden_states
        if not output_hidden_states:
            return function(batch), None
        layers = self.network.encoder.layers
        states = []
        hooks = [layers[0].register_forward_pre_hook(lambda _, inputs: states.append(inputs[0]))]
        for layer in layers:
            hooks.append(layer.register_forward_hook(lambda *parts: states.append(parts[-1])))
        try:
            result = function(batch)
        finally:
            for hook in hooks:
                hook.remove()
        return result, tuple(states)

    def forward(self, input_ids, attention_mask=None, token_type_ids=None, output_attentions=None,
                output_hidden_states=None, return_dict=None):
        """last_hidden_state: (B, T, H). self.network has the heads that the network was trained
        with."""
        states, hidden_states = self.run(
            lambda batch: self.network.encoder(**batch), input_ids, attention_mask, token_type_ids,
            output_attentions, output_hidden_states)
        output = BaseModelOutput(last_hidden_state=states, hidden_states=hidden_states)
        return output.to_tuple() if return_dict is False else output


class NetworkForSequenceClassification(NetworkModel):
    def forward(self, input_ids, attention_mask=None, token_type_ids=None, labels=None,
                output_attentions=None, output_hidden_states=None, return_dict=None):
        """logits: (B, outputs). labels: (B,), classes, or numbers if there is one output."""
        logits, hidden_states = self.run(
            self.network, input_ids, attention_mask, token_type_ids, output_attentions,
            output_hidden_states)
        loss = None
        if labels is not None and logits.shape[-1] == 1:
            loss = F.mse_loss(logits.squeeze(-1), labels.to(logits.dtype))
        elif labels is not None:
            loss = F.cross_entropy(logits, labels)
        output = SequenceClassifierOutput(loss=loss, logits=logits, hidden_states=hidden_states)
        return output.to_tuple() if return_dict is False else output
