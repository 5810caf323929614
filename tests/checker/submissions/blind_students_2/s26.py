# expect: correct
# what: tabs, dict config, F.scaled_dot_product_attention, per-head [q k v] layout, True=padding
import torch
import torch.nn as nn
import torch.nn.functional as F


class MHA(nn.Module):
	# tabs > spaces
	def __init__(self, cfg: dict):
		super().__init__()
		self.nh = cfg['n_heads']
		self.dm = cfg['d_model']
		self.p = cfg.get('dropout', 0.0)
		self.causal = cfg.get('causal', False)
		self.in_proj = nn.Linear(self.dm, 3 * self.dm, bias=cfg.get('bias', True))
		self.out_proj = nn.Linear(self.dm, self.dm, bias=cfg.get('bias', True))

	def forward(self, x, padding=None):
		"""padding: bool (B, T), True = this position is padding"""
		B, T, _ = x.shape
		# the last dim of in_proj is [head0: q k v | head1: q k v | ...]
		qkv = self.in_proj(x).view(B, T, self.nh, -1).transpose(1, 2)
		q, k, v = qkv.chunk(3, dim=-1)

		mask = None
		if padding is not None:
			mask = ~padding[:, None, None, :]		# sdpa: True = take part
			if self.causal:
				tri = torch.ones(T, T, dtype=torch.bool, device=x.device).tril()
				mask = mask & tri
		y = F.scaled_dot_product_attention(
			q, k, v,
			attn_mask=mask,
			dropout_p=self.p if self.training else 0.0,
			is_causal=self.causal and mask is None,
		)
		return self.out_proj(y.transpose(1, 2).flatten(2))


if __name__ == '__main__':
	cfg = {'n_heads': 4, 'd_model': 32, 'causal': True, 'dropout': 0.2}
	m = MHA(cfg)
	pad = torch.zeros(2, 7, dtype=torch.bool)
	pad[1, 4:] = True
	print(m(torch.randn(2, 7, 32)).shape, m(torch.randn(2, 7, 32), pad).shape)
