"""The papers that docstrings cite: every ``Reference:`` line resolves here."""

from __future__ import annotations

from dataclasses import dataclass

from normscope.registry import unknown_name


@dataclass(frozen=True)
class Paper:
    """One publication."""

    key: str
    authors: str
    title: str
    venue: str
    year: int
    link: str

    def __str__(self) -> str:
        return f"{self.authors}: {self.title}. {self.venue}, {self.year}. {self.link}"


PAPERS = {
    paper.key: paper
    for paper in (
        Paper(
            "ioffe2015",
            "Sergey Ioffe, Christian Szegedy",
            "Batch Normalization: Accelerating Deep Network Training by Reducing Internal "
            "Covariate Shift",
            "ICML",
            2015,
            "https://arxiv.org/abs/1502.03167",
        ),
        Paper(
            "santurkar2018",
            "Shibani Santurkar, Dimitris Tsipras, Andrew Ilyas, Aleksander Madry",
            "How Does Batch Normalization Help Optimization?",
            "NeurIPS",
            2018,
            "https://arxiv.org/abs/1805.11604",
        ),
        Paper(
            "wei2018",
            "Mingwei Wei, James Stokes, David J. Schwab",
            "Mean-field Analysis of Batch Normalization",
            "arXiv",
            2019,
            "https://arxiv.org/abs/1903.02606",
        ),
        Paper(
            "kohler2018",
            "Jonas Kohler, Hadi Daneshmand, Aurelien Lucchi, Ming Zhou, Klaus Neymeyr, "
            "Thomas Hofmann",
            "Exponential convergence rates for Batch Normalization: The power of "
            "length-direction decoupling in non-convex optimization",
            "AISTATS",
            2019,
            "https://arxiv.org/abs/1805.10694",
        ),
        Paper(
            "yang2019",
            "Greg Yang, Jeffrey Pennington, Vinay Rao, Jascha Sohl-Dickstein, Samuel S. Schoenholz",
            "A Mean Field Theory of Batch Normalization",
            "ICLR",
            2019,
            "https://arxiv.org/abs/1902.08129",
        ),
        Paper(
            "glorot2010",
            "Xavier Glorot, Yoshua Bengio",
            "Understanding the difficulty of training deep feedforward neural networks",
            "AISTATS",
            2010,
            "https://proceedings.mlr.press/v9/glorot10a.html",
        ),
        Paper(
            "simonyan2014",
            "Karen Simonyan, Andrew Zisserman",
            "Very Deep Convolutional Networks for Large-Scale Image Recognition",
            "ICLR",
            2015,
            "https://arxiv.org/abs/1409.1556",
        ),
        Paper(
            "he2016",
            "Kaiming He, Xiangyu Zhang, Shaoqing Ren, Jian Sun",
            "Identity Mappings in Deep Residual Networks",
            "ECCV",
            2016,
            "https://arxiv.org/abs/1603.05027",
        ),
        Paper(
            "ba2016",
            "Jimmy Lei Ba, Jamie Ryan Kiros, Geoffrey E. Hinton",
            "Layer Normalization",
            "arXiv",
            2016,
            "https://arxiv.org/abs/1607.06450",
        ),
        Paper(
            "wu2018",
            "Yuxin Wu, Kaiming He",
            "Group Normalization",
            "ECCV",
            2018,
            "https://arxiv.org/abs/1803.08494",
        ),
        Paper(
            "zhang2019",
            "Biao Zhang, Rico Sennrich",
            "Root Mean Square Layer Normalization",
            "NeurIPS",
            2019,
            "https://arxiv.org/abs/1910.07467",
        ),
        Paper(
            "ulyanov2016",
            "Dmitry Ulyanov, Andrea Vedaldi, Victor Lempitsky",
            "Instance Normalization: The Missing Ingredient for Fast Stylization",
            "arXiv",
            2016,
            "https://arxiv.org/abs/1607.08022",
        ),
        Paper(
            "zhu2025",
            "Jiachen Zhu, Xinlei Chen, Kaiming He, Yann LeCun, Zhuang Liu",
            "Transformers without Normalization",
            "CVPR",
            2025,
            "https://arxiv.org/abs/2503.10622",
        ),
        Paper(
            "salimans2016",
            "Tim Salimans, Diederik P. Kingma",
            "Weight Normalization: A Simple Reparameterization to Accelerate Training of Deep "
            "Neural Networks",
            "NeurIPS",
            2016,
            "https://arxiv.org/abs/1602.07868",
        ),
        Paper(
            "miyato2018",
            "Takeru Miyato, Toshiki Kataoka, Masanori Koyama, Yuichi Yoshida",
            "Spectral Normalization for Generative Adversarial Networks",
            "ICLR",
            2018,
            "https://arxiv.org/abs/1802.05957",
        ),
        Paper(
            "chan1983",
            "Tony F. Chan, Gene H. Golub, Randall J. LeVeque",
            "Algorithms for Computing the Sample Variance: Analysis and Recommendations",
            "The American Statistician",
            1983,
            "https://doi.org/10.1080/00031305.1983.10483115",
        ),
        Paper(
            "cohen2021",
            "Jeremy Cohen, Simran Kaur, Yuanzhi Li, J. Zico Kolter, Ameet Talwalkar",
            "Gradient Descent on Neural Networks Typically Occurs at the Edge of Stability",
            "ICLR",
            2021,
            "https://arxiv.org/abs/2103.00065",
        ),
        Paper(
            "cohen2022",
            "Jeremy Cohen, Behrooz Ghorbani, Shankar Krishnan, Naman Agarwal, Sourabh "
            "Medapati, Michal Badura, Daniel Suo, David Cardoze, Zachary Nado, George E. "
            "Dahl, Justin Gilmer",
            "Adaptive Gradient Methods at the Edge of Stability",
            "arXiv",
            2022,
            "https://arxiv.org/abs/2207.14484",
        ),
        Paper(
            "andreyev2026",
            "Arseniy Andreyev, Advikar Ananthkumar, Marc Walden, Tomaso Poggio, Pierfrancesco "
            "Beneventano",
            "Momentum Further Constrains Sharpness at the Edge of Stochastic Stability",
            "arXiv",
            2026,
            "https://arxiv.org/abs/2604.14108",
        ),
    )
}
"""The papers by key."""


def paper(key: str) -> Paper:
    """Return the publication with this key.

    Raises:
        UnknownNameError: if the key is not in the list.

    >>> paper("ioffe2015").year
    2015
    """
    if key not in PAPERS:
        raise unknown_name("paper", key, PAPERS)
    return PAPERS[key]
